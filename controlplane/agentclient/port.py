"""Port to sandboxd. Times out rather than waits for ever; errors:

``Retryable`` ``sandbox_unreachable`` (nobody answers at the door), ``Permanent`` ``protocol_mismatch``,
``Conflict`` ``already_bound``, ``NotFound`` ``exec_not_found`` / ``FILE_NOT_FOUND``, ``Denied``, and
``Permanent`` with sandboxd's own code (``CWD_OUTSIDE``) for the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

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
from controlplane.ids import SandboxId, SessionId


@dataclass(frozen=True, slots=True)
class Door:
    """Where sandboxd of one sandbox listens: ``unix:/path``, or ``sim:ID`` for simulated ones."""

    sandbox: SandboxId
    address: str


class AgentClient(Protocol):
    """``session`` None speaks as the system; a session id speaks for that session only."""

    async def hello(self, door: Door) -> Hello: ...

    async def ready(self, door: Door, wait_s: float) -> Ready: ...

    async def bind(
        self,
        door: Door,
        session: SessionId,
        tenant: str,
        env: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> Bound: ...

    async def binding(self, door: Door) -> Binding: ...

    async def exec_start(self, door: Door, session: SessionId | None, start: ExecStart) -> ExecStatus: ...

    async def exec_status(self, door: Door, session: SessionId | None, exec_id: str) -> ExecStatus: ...

    async def exec_list(self, door: Door, session: SessionId | None) -> ExecList: ...

    async def exec_events(
        self,
        door: Door,
        session: SessionId | None,
        exec_id: str,
        after: int,
        wait_s: float,
        limit: int = 1000,
    ) -> EventPage: ...

    def exec_stream(self, door: Door, session: SessionId | None, exec_id: str, after: int) -> AsyncIterator[ExecEvent]:
        """Events from ``after`` on, to and with ``closed``. Retryable ``stream_broken`` if cut before."""
        ...

    async def exec_stdin(self, door: Door, session: SessionId | None, exec_id: str, data: bytes, eof: bool) -> None: ...

    async def exec_signal(
        self, door: Door, session: SessionId | None, exec_id: str, request: SignalRequest
    ) -> ExecStatus: ...

    def file_read(self, door: Door, session: SessionId | None, path: str) -> AsyncIterator[bytes]: ...

    async def file_write(
        self, door: Door, session: SessionId | None, path: str, data: AsyncIterator[bytes], mode: str | None
    ) -> FileInfo: ...

    async def file_list(self, door: Door, session: SessionId | None, path: str) -> FileList: ...

    async def file_delete(self, door: Door, session: SessionId | None, path: str, recursive: bool) -> None: ...

    def forget(self, sandbox: SandboxId) -> None:
        """Drop pooled connections to a sandbox that is gone."""
        ...

    async def close(self) -> None: ...
