"""Sessions after the claim: reading, lease, activity, end, waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from controlplane.errors import NotFound
from controlplane.ids import SessionId, TenantId
from controlplane.model.sandbox import Session
from controlplane.store.claims import check_ttl
from controlplane.store.codec import decode, decode_all
from controlplane.store.parts import StorePart

_PAGE = 500
# A wake-up can only be missed if a connection died without a word; then this bounds the delay.
_REREAD_S = 10.0
_UNSETTLED = ("waiting", "binding")


class Sessions(StorePart):
    async def get_session(self, key: SessionId) -> Session:
        return await self._need(Session, "sessions", key, "session")

    async def list_sessions(
        self, tenant: TenantId | None, states: Sequence[str], labels: Mapping[str, str], limit: int
    ) -> list[Session]:
        """Newest first, those that live before those that ended. No ``states``: every state."""
        indexes = []
        if not states or any(state != "ended" for state in states):
            indexes.append("live")
        if not states or "ended" in states:
            indexes.append("ended")
        found: list[Session] = []
        for index in indexes:
            async for session in self._newest_first(self._key(index, tenant)):
                if len(found) >= limit:
                    return found
                if (not states or session.state in states) and labels.items() <= session.labels.items():
                    found.append(session)
        return found

    async def _newest_first(self, index: str) -> AsyncIterator[Session]:
        start = 0
        while ids := await self._link.command("ZREVRANGE", index, start, start + _PAGE - 1):
            for session in await self._some(Session, "sessions", ids):
                yield session
            start += _PAGE

    async def queue_position(self, session: SessionId) -> int | None:
        place: int = await self._link.run("queue_position", {"session": session})
        return None if place < 0 else place

    async def extend_session(self, session: SessionId, ttl_s: float) -> Session:
        check_ttl(ttl_s)
        return decode(Session, await self._link.run("extend_session", {"session": session, "ttl_s": ttl_s}))

    async def touch_session(self, session: SessionId) -> None:
        await self._link.run("touch_session", {"session": session})

    async def end_session(self, session: SessionId, reason: str, detail: str, actor: str) -> Session:
        args = {"session": session, "reason": reason, "detail": detail, "actor": actor}
        return decode(Session, await self._link.run("end_session", args))

    async def due_sessions(self, limit: int) -> list[Session]:
        """Also forgets up to ``limit`` sessions that ended longer ago than they are kept."""
        return decode_all(Session, await self._link.run("due_sessions", {"limit": limit}))

    async def idle_candidates(self, limit: int) -> list[Session]:
        now = await self._now()
        ids = await self._link.command("ZRANGEBYSCORE", self._key("idle"), "-inf", now, "LIMIT", 0, limit)
        return await self._some(Session, "sessions", ids)

    async def wait_session(self, session: SessionId, timeout_s: float) -> Session:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout_s
        while True:
            async with self._wakeups.expect(session) as moved:
                found = await self.get_session(session)
                left = end - clock()
                if found.state not in _UNSETTLED or left <= 0:
                    return found
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _REREAD_S)):
                        await moved

    async def find_session(self, key: SessionId) -> Session | None:
        """The session, or None once its record was collected (or never was)."""
        with contextlib.suppress(NotFound):
            return await self.get_session(key)
        return None
