"""Which session holds this sandbox. Set once, for ever: a sandbox is never used again."""

from __future__ import annotations

import logging
import re
import time

from agents.sandboxd.problems import ProblemError
from agents.wire import Bind, Binding, Bound

_CLAIM = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CLOCK_TOLERANCE_S = 1.0
log = logging.getLogger("sandboxd.binding")


class Holder:
    """The binding, and when the sandbox was last used. All of it runs on the event loop, without awaits,
    so of two claims racing exactly one wins."""

    def __init__(self, sandbox_id: str, *, own_clock: bool) -> None:
        self._sandbox_id = sandbox_id
        self._own_clock = own_clock
        self._bind: Bind | None = None
        self._bound_at: float | None = None
        self._used_at = time.time()

    @property
    def claim_id(self) -> str | None:
        return self._bind.claim_id if self._bind else None

    @property
    def env(self) -> dict[str, str]:
        """The session's environment layer; empty before bind."""
        return self._bind.env if self._bind else {}

    def bind(self, request: Bind) -> Bound:
        """Idempotent per claim id (the first request's values stay); another claim id is a 409."""
        if self._bind is not None and self._bound_at is not None:
            if self._bind.claim_id != request.claim_id:
                raise ProblemError(409, "already_bound", "Another session holds this sandbox.")
            return Bound(claim_id=request.claim_id, first=False, bound_at=self._bound_at)
        if not _CLAIM.fullmatch(request.claim_id) or request.claim_id == "system":
            raise ProblemError(400, "bad_claim_id", "A claim id is 1 to 128 of A-Z, a-z, 0-9, '_' and '-'.")
        self._correct_clock(request.now)
        self._bind = request
        self._bound_at = self._used_at = time.time()
        return Bound(claim_id=request.claim_id, first=True, bound_at=self._bound_at)

    def touch(self) -> None:
        self._used_at = time.time()

    def describe(self, running: int) -> Binding:
        held = self._bind
        return Binding(
            sandbox_id=self._sandbox_id,
            claim_id=held.claim_id if held else None,
            tenant=held.tenant if held else None,
            labels=held.labels if held else {},
            bound_at=self._bound_at,
            last_activity_at=self._used_at,
            running=running,
            proof=held.proof if held else "",
        )

    def _correct_clock(self, now: float) -> None:
        """A restored microVM wakes with the clock of its snapshot; containers share the host's clock."""
        if not self._own_clock or abs(time.time() - now) <= _CLOCK_TOLERANCE_S:
            return
        try:
            time.clock_settime(time.CLOCK_REALTIME, now)
        except OSError as error:
            log.warning("the clock is off by %.1f s and cannot be set: %s", now - time.time(), error)
