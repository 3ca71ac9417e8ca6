"""Connections to doors: made safely, a few kept per sandbox, closed when idle.

A sandbox can replace its socket by a symlink, and a host that connects to that path then reaches any
socket of the host. So the path is opened without following its last part, must be a socket, and the
connection goes to that very inode through /proc/self/fd.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections import OrderedDict
from dataclasses import dataclass, field

from controlplane.agentclient.connection import DoorConnection
from controlplane.agentclient.port import Door
from controlplane.errors import Permanent, Retryable
from controlplane.ids import SandboxId


@dataclass(slots=True)
class _Slot:
    """Connections of one sandbox: how many are in use, and those that rest."""

    in_use: int = 0
    idle: list[DoorConnection] = field(default_factory=list)


class DoorPool:
    """``max_per_sandbox``: connections in use at one time (each stream and long poll holds one).
    ``max_idle``: resting connections of all sandboxes together, the longest resting close first."""

    def __init__(
        self, *, max_per_sandbox: int = 64, idle_per_sandbox: int = 2, max_idle: int = 256, idle_s: float = 5.0
    ) -> None:
        self._max_per_sandbox = max_per_sandbox
        self._idle_per_sandbox = idle_per_sandbox
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._slots: dict[SandboxId, _Slot] = {}
        self._resting: OrderedDict[DoorConnection, tuple[SandboxId, asyncio.TimerHandle]] = OrderedDict()

    async def acquire(self, door: Door, *, fresh: bool = False) -> tuple[DoorConnection, bool]:
        """A connection, and whether it was used before. ``fresh``: never a used one.

        Retryable ``sandbox_unreachable`` or ``sandbox_busy``; Permanent ``door_replaced``."""
        slot = self._slots.setdefault(door.sandbox, _Slot())
        if slot.in_use >= self._max_per_sandbox:
            raise Retryable(
                "sandbox_busy",
                f"{slot.in_use} calls to this sandbox are already open; no more are opened at one time.",
                hint="Close streams that are no longer read, or try again shortly.",
            )
        slot.in_use += 1
        try:
            while slot.idle and not fresh:
                connection = slot.idle.pop()
                self._resting.pop(connection)[1].cancel()
                if connection.reusable:
                    return connection, True
            return await _connect(door), False
        except BaseException:
            self._leave(door.sandbox, slot)
            raise

    def release(self, door: Door, connection: DoorConnection) -> None:
        slot = self._slots.get(door.sandbox)
        keep = slot is not None and connection.reusable and len(slot.idle) < self._idle_per_sandbox
        if slot is not None and keep:
            slot.idle.append(connection)
            timer = asyncio.get_running_loop().call_later(self._idle_s, self._expire, connection)
            self._resting[connection] = (door.sandbox, timer)
            if len(self._resting) > self._max_idle:
                self._expire(next(iter(self._resting)))
        else:
            connection.abort("no longer needed")
        if slot is not None:
            self._leave(door.sandbox, slot)

    def forget(self, sandbox: SandboxId) -> None:
        slot = self._slots.get(sandbox)
        for connection in list(slot.idle) if slot else []:
            self._expire(connection)

    def close(self) -> None:
        for connection in list(self._resting):
            self._expire(connection)

    def _expire(self, connection: DoorConnection) -> None:
        sandbox, timer = self._resting.pop(connection)
        timer.cancel()
        connection.abort("idle for too long")
        slot = self._slots[sandbox]
        slot.idle.remove(connection)
        self._drop_empty(sandbox, slot)

    def _leave(self, sandbox: SandboxId, slot: _Slot) -> None:
        slot.in_use -= 1
        self._drop_empty(sandbox, slot)

    def _drop_empty(self, sandbox: SandboxId, slot: _Slot) -> None:
        if not slot.in_use and not slot.idle:
            self._slots.pop(sandbox, None)


async def _connect(door: Door) -> DoorConnection:
    loop = asyncio.get_running_loop()
    sock = _open_socket(door)
    for pause_s in (0.001, 0.005, 0.02, 0.05, 0.1, None):
        try:
            _connect_to_inode(sock, door)
            break
        except BlockingIOError:  # Its backlog is full: Unix sockets don't queue the connect, they refuse it.
            if pause_s is None:
                sock.close()
                raise _unreachable(door, "its queue of connections is full") from None
            await asyncio.sleep(pause_s)
        except BaseException:
            sock.close()
            raise
    _, connection = await loop.create_unix_connection(lambda: DoorConnection(loop), sock=sock)
    return connection


def _open_socket(door: Door) -> socket.socket:
    if not door.address.startswith("unix:"):
        raise Permanent("door_address_unknown", f"Sandbox {door.sandbox} has a door that is not a Unix socket.")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def _connect_to_inode(sock: socket.socket, door: Door) -> None:
    try:
        fd = os.open(door.address.removeprefix("unix:"), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreachable(door, "its socket is not there") from error
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise Permanent(
                "door_replaced",
                f"The door of sandbox {door.sandbox} is no longer a socket; it was not connected to.",
                hint="The sandbox is not to be trusted any more and must be retired.",
            )
        sock.connect(f"/proc/self/fd/{fd}")
    except BlockingIOError:
        raise
    except OSError as error:
        raise _unreachable(door, "nobody listens there") from error
    finally:
        os.close(fd)


def _unreachable(door: Door, why: str) -> Retryable:
    return Retryable("sandbox_unreachable", f"Nobody answers at the door of sandbox {door.sandbox}: {why}.")
