"""One AgentClient for all doors: the scheme of the address says which client speaks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from agents.wire import (
    Binding,
    Bound,
    EventPage,
    ExecEvent,
    ExecList,
    ExecStart,
    ExecStatus,
    FileInfo,
    FileList,
    Hello,
    Ready,
    SignalRequest,
)
from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Permanent
from controlplane.ids import SandboxId, SessionId


class DispatchingAgent:
    """``clients``: scheme (``unix``, ``sim``) → its client."""

    def __init__(self, clients: Mapping[str, AgentClient]) -> None:
        self._clients = dict(clients)

    async def hello(self, door: Door) -> Hello:
        return await self._of(door).hello(door)

    async def ready(self, door: Door, wait_s: float) -> Ready:
        return await self._of(door).ready(door, wait_s)

    async def bind(
        self, door: Door, session: SessionId, tenant: str, env: Mapping[str, str], labels: Mapping[str, str]
    ) -> Bound:
        return await self._of(door).bind(door, session, tenant, env, labels)

    async def binding(self, door: Door) -> Binding:
        return await self._of(door).binding(door)

    async def exec_start(self, door: Door, session: SessionId | None, start: ExecStart) -> ExecStatus:
        return await self._of(door).exec_start(door, session, start)

    async def exec_status(self, door: Door, session: SessionId | None, exec_id: str) -> ExecStatus:
        return await self._of(door).exec_status(door, session, exec_id)

    async def exec_list(self, door: Door, session: SessionId | None) -> ExecList:
        return await self._of(door).exec_list(door, session)

    async def exec_events(
        self, door: Door, session: SessionId | None, exec_id: str, after: int, wait_s: float, limit: int = 1000
    ) -> EventPage:
        return await self._of(door).exec_events(door, session, exec_id, after, wait_s, limit)

    def exec_stream(self, door: Door, session: SessionId | None, exec_id: str, after: int) -> AsyncIterator[ExecEvent]:
        return self._of(door).exec_stream(door, session, exec_id, after)

    async def exec_stdin(self, door: Door, session: SessionId | None, exec_id: str, data: bytes, eof: bool) -> None:
        await self._of(door).exec_stdin(door, session, exec_id, data, eof)

    async def exec_signal(
        self, door: Door, session: SessionId | None, exec_id: str, request: SignalRequest
    ) -> ExecStatus:
        return await self._of(door).exec_signal(door, session, exec_id, request)

    def file_read(self, door: Door, session: SessionId | None, path: str) -> AsyncIterator[bytes]:
        return self._of(door).file_read(door, session, path)

    async def file_write(
        self, door: Door, session: SessionId | None, path: str, data: AsyncIterator[bytes], mode: str | None
    ) -> FileInfo:
        return await self._of(door).file_write(door, session, path, data, mode)

    async def file_list(self, door: Door, session: SessionId | None, path: str) -> FileList:
        return await self._of(door).file_list(door, session, path)

    async def file_delete(self, door: Door, session: SessionId | None, path: str, recursive: bool) -> None:
        await self._of(door).file_delete(door, session, path, recursive)

    def forget(self, sandbox: SandboxId) -> None:
        for client in self._clients.values():
            client.forget(sandbox)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _of(self, door: Door) -> AgentClient:
        scheme = door.address.partition(":")[0]
        client = self._clients.get(scheme)
        if client is None:
            raise Permanent(
                "door_address_unknown",
                f"Sandbox {door.sandbox} has a door of kind {scheme!r}; this process speaks {sorted(self._clients)}.",
                hint="Run every process of one deployment with the same settings.",
            )
        return client
