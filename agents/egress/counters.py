"""What a door counts. All keys come from the gateway's own codes, so a sandbox cannot make them grow."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from agents.egress.audit import Outcome
from agents.wire.egress import DeniedTarget

LAST_DENIED = 32


@dataclass(slots=True, kw_only=True)
class DoorCounters:
    """Since the gateway's start. ``last_denied`` holds the newest refusals by policy, oldest first."""

    connections_total: int = 0
    allowed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    denied: Counter[str] = field(default_factory=Counter)
    bad_requests: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    last_denied: deque[DeniedTarget] = field(default_factory=lambda: deque(maxlen=LAST_DENIED))

    def note(self, outcome: Outcome, code: str, target: str, *, at: float) -> None:
        if outcome == "denied":
            self.denied[code] += 1
            self.last_denied.append(DeniedTarget(at=at, target=target, reason=code))
        elif outcome == "bad_request":
            self.bad_requests[code] += 1
        elif outcome == "failed":
            self.failed[code] += 1
