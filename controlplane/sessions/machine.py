"""What a session may do with its machine: commands and files, through its door.

Every call reads the session: it must be the tenant's and attached. Each counts as activity.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar, cast

from agents.wire import EventPage, ExecEvent, ExecList, ExecStart, ExecStatus, FileInfo, FileList, SignalRequest
from controlplane.agentclient.port import AgentClient, Door
from controlplane.clock import Clock
from controlplane.errors import Conflict, NotFound, Retryable
from controlplane.ids import SessionId, TenantId
from controlplane.model.sandbox import Session
from controlplane.sessions.outcome import ended
from controlplane.sessions.service import owned_session
from controlplane.store.port import Store

T = TypeVar("T")
TOUCH_EVERY_S = 1.0
TOUCHED_ENTRIES = 10_000


class SessionMachine:
    """Errors of every call: NotFound ``session_not_found``; Conflict ``session_not_attached`` or
    ``session_ended`` (with the end reason; also when it ended during the call); Retryable
    ``sandbox_unreachable``; and sandboxd's own."""

    def __init__(self, store: Store, agent: AgentClient, clock: Clock) -> None:
        self._store = store
        self._agent = agent
        self._clock = clock
        self._touched: OrderedDict[SessionId, float] = OrderedDict()

    async def exec_start(self, tenant: TenantId, session: str, start: ExecStart) -> ExecStatus:
        async with self._using(tenant, session) as (found, door):
            return await self._agent.exec_start(door, found.id, start)

    async def exec_status(self, tenant: TenantId, session: str, exec_id: str) -> ExecStatus:
        async with self._using(tenant, session) as (found, door):
            return await self._agent.exec_status(door, found.id, exec_id)

    async def exec_list(self, tenant: TenantId, session: str) -> ExecList:
        async with self._using(tenant, session) as (found, door):
            return await self._agent.exec_list(door, found.id)

    async def exec_events(
        self, tenant: TenantId, session: str, exec_id: str, after: int, wait_s: float, limit: int
    ) -> EventPage:
        async with self._using(tenant, session) as (found, door):
            return await self._agent.exec_events(door, found.id, exec_id, after, wait_s, limit)

    async def exec_stream(self, tenant: TenantId, session: str, exec_id: str, after: int) -> AsyncIterator[ExecEvent]:
        """Events to and with ``closed``; activity for as long as they come."""
        async with (
            self._using(tenant, session) as (found, door),
            aclosing(_closable(self._agent.exec_stream(door, found.id, exec_id, after))) as events,
        ):
            async for event in events:
                await self._touch(found.id)
                yield event

    async def exec_stdin(self, tenant: TenantId, session: str, exec_id: str, data: bytes, eof: bool) -> None:
        async with self._using(tenant, session) as (found, door):
            await self._agent.exec_stdin(door, found.id, exec_id, data, eof)

    async def exec_signal(self, tenant: TenantId, session: str, exec_id: str, request: SignalRequest) -> ExecStatus:
        async with self._using(tenant, session) as (found, door):
            return await self._agent.exec_signal(door, found.id, exec_id, request)

    async def file_read(self, tenant: TenantId, session: str, path: str) -> AsyncIterator[bytes]:
        async with (
            self._using(tenant, session) as (found, door),
            aclosing(_closable(self._agent.file_read(door, found.id, path))) as chunks,
        ):
            async for chunk in chunks:
                await self._touch(found.id)
                yield chunk

    async def file_write(
        self, tenant: TenantId, session: str, path: str, data: AsyncIterator[bytes], mode: str | None
    ) -> FileInfo:
        async with self._using(tenant, session) as (found, door):
            return await self._agent.file_write(door, found.id, path, data, mode)

    async def file_list(self, tenant: TenantId, session: str, path: str) -> FileList:
        async with self._using(tenant, session) as (found, door):
            return await self._agent.file_list(door, found.id, path)

    async def file_delete(self, tenant: TenantId, session: str, path: str, recursive: bool) -> None:
        async with self._using(tenant, session) as (found, door):
            await self._agent.file_delete(door, found.id, path, recursive)

    @asynccontextmanager
    async def _using(self, tenant: TenantId, session: str) -> AsyncGenerator[tuple[Session, Door]]:
        found = await owned_session(self._store, tenant, session)
        if found.state == "ended":
            raise ended(found)
        if found.state != "attached" or found.sandbox is None or found.door is None:
            raise Conflict(
                "session_not_attached",
                f"Session {found.id} is {found.state}; it has no machine to use now.",
                hint="Wait for it with GET /v1/sessions/{id}?wait_s=…",
            )
        await self._touch(found.id)
        try:
            yield found, Door(found.sandbox, found.door)
        except Retryable as error:
            raise await self._lost(found, error) from error

    async def _lost(self, session: Session, error: Retryable) -> Exception:
        """The session's end, if that is why the sandbox did not answer, else the error itself."""
        try:
            now = await self._store.get_session(session.id)
        except (NotFound, Retryable):
            return error
        return ended(now) if now.state == "ended" else error

    async def _touch(self, session: SessionId) -> None:
        now = self._clock.monotonic()
        if now - self._touched.get(session, -TOUCH_EVERY_S) < TOUCH_EVERY_S:
            return
        self._touched[session] = now
        self._touched.move_to_end(session)
        if len(self._touched) > TOUCHED_ENTRIES:
            self._touched.popitem(last=False)
        await self._store.touch_session(session)


def new_exec_id() -> str:
    return "ex-" + secrets.token_hex(8)


def _closable(items: AsyncIterator[T]) -> AsyncGenerator[T]:
    """The port's streams are generators: closed at once when their reader leaves, not when memory is collected."""
    return cast(AsyncGenerator[T], items)
