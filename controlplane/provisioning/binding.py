"""Binding a session that got its sandbox from the queue, or that nobody finished binding."""

from __future__ import annotations

import asyncio
import logging

from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Conflict, WarmpoolError
from controlplane.model.sandbox import Session
from controlplane.store.port import Store

log = logging.getLogger(__name__)


class Binder:
    """Brings in what is known only at claim time; each bind is also the probe that the sandbox lives.

    ``timeout_s``: longest wait for one bind. ``max_failures``: sandboxes in a row that may turn out dead
    before the session is given up with ``sandbox_failed``.
    """

    def __init__(self, store: Store, agents: AgentClient, *, timeout_s: float = 5.0, max_failures: int = 5) -> None:
        self._store = store
        self._agents = agents
        self._timeout_s = timeout_s
        self._max_failures = max_failures

    async def bind(self, session: Session) -> Session:
        """The session attached; waiting again if no sandbox was left to try; or ended meanwhile. Idempotent."""
        while session.state == "binding" and session.sandbox is not None:
            failure = await self._try(session)
            if failure is None:
                try:
                    return await self._store.bound(session.id, session.sandbox)
                except Conflict:
                    return await self._store.get_session(session.id)
            log.warning("session %s: binding sandbox %s failed: %s", session.id, session.sandbox, failure)
            if session.bind_failures + 1 >= self._max_failures:
                return await self._store.end_session(session.id, "sandbox_failed", failure, "provisioning")
            result = await self._store.claim_next(session.id, session.sandbox, failure)
            session = result.session or await self._store.get_session(session.id)
        return session

    async def _try(self, session: Session) -> str | None:
        """None once bound, else why not."""
        assert session.sandbox is not None
        if session.door is None:
            return "bind failed: its door is not known"
        door = Door(session.sandbox, session.door)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._agents.bind(door, session.id, session.tenant, session.env, session.labels)
        except TimeoutError:
            return f"bind failed: no answer within {self._timeout_s:g} s"
        except WarmpoolError as error:
            return f"bind failed: {error.message}"
        return None
