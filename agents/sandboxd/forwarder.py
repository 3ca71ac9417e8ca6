"""The way out: an ordinary proxy address on loopback, each connection piped to the egress gateway's door.

It decides nothing and reads nothing. Who is calling, and whether they may, is the gateway's to judge
by the door itself.
"""

from __future__ import annotations

import asyncio
import logging
import socket

_BACKLOG = 128
log = logging.getLogger("sandboxd.forwarder")


class Forwarder:
    """Listens on 127.0.0.1:``port`` and dials ``egress_socket`` for each connection."""

    def __init__(self, port: int, egress_socket: str) -> None:
        self._port = port
        self._egress_socket = egress_socket
        self._server: asyncio.Server | None = None
        self.state = "starting"

    async def start(self) -> None:
        """Listen. A port that cannot be had is told in ``state``, not raised: the sandbox is not ready then."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Inner(self._egress_socket), "127.0.0.1", self._port, backlog=_BACKLOG
            )
        except OSError as error:
            self.state = f"failed: cannot listen on 127.0.0.1:{self._port}: {error.strerror}"
            log.error("%s", self.state)
            return
        self.state = "ready"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


class _Half(asyncio.Protocol):
    """One side of a piped connection: what it receives goes to the other side, at that side's pace."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Half-closed: the other direction goes on."""
        if self.other is not None and self.other.transport is not None and self.other.transport.can_write_eof():
            self.other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Inner(_Half):
    """The side of the program in the sandbox; what it says before the gateway has answered the dial is kept.

    Pausing in ``connection_made`` would be simpler, but CPython before 3.11.4 starts to read all the same."""

    def __init__(self, egress_socket: str) -> None:
        super().__init__()
        self._egress_socket = egress_socket
        self._early = b""
        self._early_end = False
        self._dial: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dial = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._early += data
        assert self.transport is not None
        self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._early_end = self.other is None
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._dial is not None:
            self._dial.cancel()
        super().connection_lost(exc)

    async def _connect(self) -> None:
        assert self.transport is not None
        outer = _Half()
        outer.other = self
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: outer, self._egress_socket)
        except OSError as error:
            log.warning("the egress gateway does not answer: %s", error)
            self.transport.write(_GATEWAY_AWAY)
            self.transport.close()
            return
        self.other = outer
        if self.transport.is_closing():
            if outer.transport is not None:
                outer.transport.close()
            return
        if self._early:
            super().data_received(self._early)
            self._early = b""
        if self._early_end:
            super().eof_received()
        self.transport.resume_reading()


_GATEWAY_AWAY = (
    b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"The sandbox's egress gateway does not answer; try again in a moment.\n"
)
