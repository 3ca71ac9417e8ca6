"""Time as an argument: the only place that reads a clock.

``now`` is the epoch in seconds (UTC), ``monotonic`` has no epoch and never goes back. Leases are
judged by the store's own clock, never by this one.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to; for tests and simulation."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self.at = start_s

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds
