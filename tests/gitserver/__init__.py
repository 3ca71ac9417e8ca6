"""Tests of scripts/gitserver.py, and ``loading``, by which other tests use it."""
