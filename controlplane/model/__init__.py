"""The nouns of Warmpool as frozen data, and every state transition as tables. No I/O, no clock, no randomness.

Belongs here: what is stored, planned and passed between services. Does not belong here: HTTP schemas
(``api``), wire messages (``agents.wire``), how any of it is stored (``store``).
"""
