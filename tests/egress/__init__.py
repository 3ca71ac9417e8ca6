"""Tests of the egress gateway; ``parts`` holds the gateway with its outside world replaced at its ports."""
