"""Binding, with one candidate after another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Conflict, Permanent, WarmpoolError
from controlplane.model.sandbox import Session
from controlplane.store.port import Store

log = logging.getLogger(__name__)
MAX_CANDIDATES = 5


def _unmeasured(_: str) -> None: ...


class Binder:
    """Each bind is also the probe that the sandbox lives.

    ``timeout_s``: how long one candidate may take before it counts as dead. ``actor``: who is noted when a session
    is given up. ``on_failure`` is told the error code of each bind that failed.
    """

    def __init__(
        self,
        store: Store,
        agents: AgentClient,
        *,
        actor: str,
        timeout_s: float = 2.0,
        on_failure: Callable[[str], None] = _unmeasured,
    ) -> None:
        self._store = store
        self._agents = agents
        self._actor = actor
        self._timeout_s = timeout_s
        self._on_failure = on_failure

    async def bind(self, session: Session, mark: Callable[[str], None] = _unmeasured) -> Session:
        """The session attached; waiting when no candidate was left; ended when it was ended meanwhile, or after
        ``MAX_CANDIDATES`` dead sandboxes in a row (``sandbox_failed``). ``mark`` names each step as it ends.

        Idempotent: sandboxd accepts the same claim again, so a binding that a crash left can be repeated."""
        while session.state == "binding":
            failure = await self._try(session)
            mark("bind")
            if failure is None:
                session = await self._attached(session)
                mark("bound")
                return session
            self._on_failure(failure.code)
            log.warning("session %s: binding sandbox %s failed: %s", session.id, session.sandbox, failure)
            if session.bind_failures + 1 >= MAX_CANDIDATES:
                detail = f"{MAX_CANDIDATES} sandboxes in a row could not be bound; the last: {failure.message}"
                return await self._store.end_session(session.id, "sandbox_failed", detail, self._actor)
            session = await self._next(session, failure)
            mark("claim")
        return session

    async def _try(self, session: Session) -> WarmpoolError | None:
        """Bind the session's present sandbox; what went wrong, None if nothing did."""
        if session.sandbox is None or session.door is None:
            return Permanent("door_address_unknown", f"Session {session.id} has a sandbox without a door.")
        door = Door(session.sandbox, session.door)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._agents.bind(door, session.id, session.tenant, session.env, session.labels)
        except TimeoutError:
            return Permanent("sandbox_unreachable", f"bind took longer than {self._timeout_s:g} s")
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
