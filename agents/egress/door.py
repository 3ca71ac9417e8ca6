"""One door: its socket, its policy, its live connections and its counters."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agents.egress.audit import Row
from agents.egress.counters import DoorCounters
from agents.egress.limits import READ_LIMIT_BYTES
from agents.egress.listener import ClientConnection, Shared
from agents.egress.policy import Policy, parse_policy
from agents.egress.replies import refusal
from agents.egress.sockets import BACKLOG, BoundSocket, bind_listening
from agents.wire.egress import DoorReport, DoorSpec

# Any uid of the sandbox may connect: who may reach the socket is settled by who has the directory mounted.
SOCKET_MODE = 0o666
_RETRY_AFTER_S = 1


class Door:
    """A listener for one sandbox. ``spec.socket_path`` is always set. Make it with ``Door.open``."""

    def __init__(self, door_id: str, spec: DoorSpec, policy: Policy, shared: Shared) -> None:
        self.id = door_id
        self._spec = spec
        self._policy = policy
        self._shared = shared
        self._counters = DoorCounters()
        self._live: dict[asyncio.Task[None], ClientConnection] = {}
        self._bound: BoundSocket | None = None
        self._server: asyncio.Server | None = None

    @classmethod
    async def open(cls, door_id: str, spec: DoorSpec, shared: Shared) -> Door:
        """A door that listens. Raises BadEntry, BindError; then nothing has changed."""
        door = cls(door_id, spec, parse_policy(spec.allow), shared)
        await door._listen(_path(spec))
        return door

    @property
    def socket_path(self) -> Path:
        return _path(self._spec)

    @property
    def connections_open(self) -> int:
        return len(self._live)

    async def replace(self, spec: DoorSpec) -> None:
        """Takes a new policy, labels or path; live connections that it does not allow are cut. Binds again
        if the path is another or no longer names this door's socket. Raises as ``open`` does."""
        policy = parse_policy(spec.allow)
        if _path(spec) != self.socket_path or self._bound is None or not self._bound.stands():
            old_server, old_bound = self._server, self._bound
            await self._listen(_path(spec))
            _stop_listening(old_server, old_bound)
        self._spec, self._policy = spec, policy
        for connection in list(self._live.values()):
            connection.abort_unless_allowed()

    async def close(self, *, unlink: bool) -> None:
        """Ends the listener and every connection. ``unlink`` False leaves the name, for a later start."""
        _stop_listening(self._server, self._bound if unlink else None)
        self._server = self._bound = None
        tasks = list(self._live)
        for connection in list(self._live.values()):
            connection.abort("door_closed" if unlink else "gateway_stopped")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def report(self) -> DoorReport:
        counters = self._counters
        return DoorReport(
            id=self.id,
            socket_path=str(self.socket_path),
            allow=self._spec.allow,
            labels=self._spec.labels,
            connections_open=len(self._live),
            connections_total=counters.connections_total,
            allowed=counters.allowed,
            denied=dict(counters.denied),
            bad_requests=dict(counters.bad_requests),
            failed=dict(counters.failed),
            bytes_up=counters.bytes_up,
            bytes_down=counters.bytes_down,
            last_denied=list(counters.last_denied),
        )

    async def _listen(self, path: Path) -> None:
        bound = bind_listening(path, mode=SOCKET_MODE)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=bound.sock, limit=READ_LIMIT_BYTES, backlog=BACKLOG
        )
        self._bound = bound

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A plain function, not a coroutine: the count must be right before the next connection is accepted.
        self._counters.connections_total += 1
        if len(self._live) >= self._shared.limits.connections:
            self._turn_away(writer)
            return
        connection = ClientConnection(
            reader,
            writer,
            shared=self._shared,
            door_id=self.id,
            labels=lambda: self._spec.labels,
            policy=lambda: self._policy,
            counters=self._counters,
        )
        task = asyncio.create_task(connection.serve())
        self._live[task] = connection
        task.add_done_callback(self._live.pop)

    def _turn_away(self, writer: asyncio.StreamWriter) -> None:
        now, code = self._shared.now(), "too_many_connections"
        detail = f"This sandbox has {self._shared.limits.connections} connections open already."
        self._counters.note("failed", code, "", at=now)
        self._shared.audit.write(
            Row(at=now, outcome="failed", door=self.id, code=code, detail=detail, labels=self._spec.labels)
        )
        writer.write(refusal(503, code, detail, "", retry_after_s=_RETRY_AFTER_S))
        writer.close()


def _path(spec: DoorSpec) -> Path:
    if spec.socket_path is None:
        raise ValueError("a door's spec needs a socket path")
    return Path(spec.socket_path)


def _stop_listening(server: asyncio.Server | None, bound: BoundSocket | None) -> None:
    if bound is not None:
        bound.unlink()
    if server is not None:
        server.close()
