"""From a claimed sandbox to an attached session, trying the next candidate when one turns out dead."""

from __future__ import annotations

import asyncio
import logging

from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Conflict, Permanent, WarmpoolError
from controlplane.metrics import Metrics
from controlplane.model.sandbox import Session
from controlplane.sessions.timing import Timings
from controlplane.store.port import Store

log = logging.getLogger(__name__)
MAX_CANDIDATES = 5


class Binder:
    """``bind_timeout_s``: how long one candidate may take before it counts as dead."""

    def __init__(self, store: Store, agent: AgentClient, metrics: Metrics, *, bind_timeout_s: float = 2.0) -> None:
        self._store = store
        self._agent = agent
        self._metrics = metrics
        self._bind_timeout_s = bind_timeout_s

    async def bind(self, session: Session, timings: Timings) -> Session:
        """The session after its binding: attached; waiting when no candidate was left; ended when it was
        ended meanwhile, or after ``MAX_CANDIDATES`` dead sandboxes in a row (``sandbox_failed``).

        Idempotent: sandboxd accepts the same claim again, so a binding that a crash left can be repeated."""
        for tried in range(1, MAX_CANDIDATES + 1):
            failure = await self._try(session)
            timings.mark("bind")
            if failure is None:
                session = await self._attached(session)
                timings.mark("bound")
                return session
            self._metrics.bind_failed(failure.code)
            log.warning("bind of %s to %s failed: %s", session.id, session.sandbox, failure)
            if tried == MAX_CANDIDATES:
                break
            session = await self._next(session, failure)
            timings.mark("claim")
            if session.state != "binding":
                return session
        detail = f"{MAX_CANDIDATES} sandboxes in a row could not be bound"
        return await self._store.end_session(session.id, "sandbox_failed", detail, "api")

    async def _try(self, session: Session) -> WarmpoolError | None:
        """Bind the session's present sandbox; what went wrong, None if nothing did."""
        if session.sandbox is None or session.door is None:
            return Permanent("door_address_unknown", f"Session {session.id} has a sandbox without a door.")
        door = Door(session.sandbox, session.door)
        try:
            async with asyncio.timeout(self._bind_timeout_s):
                await self._agent.bind(door, session.id, session.tenant, session.env, session.labels)
        except TimeoutError:
            return Permanent("sandbox_unreachable", f"bind took longer than {self._bind_timeout_s:g} s")
        except WarmpoolError as error:
            return error
        return None

    async def _attached(self, session: Session) -> Session:
        assert session.sandbox is not None
        try:
            return await self._store.bound(session.id, session.sandbox)
        except Conflict:
            # Ended, or taken over by another request of the same idempotency key: as it is now.
            return await self._store.get_session(session.id)

    async def _next(self, session: Session, failure: WarmpoolError) -> Session:
        if session.sandbox is None:
            return await self._store.get_session(session.id)
        try:
            result = await self._store.claim_next(session.id, session.sandbox, f"bind_failed: {failure.code}")
        except Conflict:
            return await self._store.get_session(session.id)
        return result.session or await self._store.get_session(session.id)
