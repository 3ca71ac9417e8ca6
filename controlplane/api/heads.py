"""The server's HTTP protocol with a limit on what a peer may send, and how slowly, before its request has begun.

uvicorn's own holds back bodies but neither heads nor connections that never send one: both are anybody's, since
they come before any key is known.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_WITHIN_S = 30.0
_REFUSALS = {
    408: b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
}


class BoundedHeads(HttpToolsProtocol):
    """A head must come within ``head_within_s`` of the connection's or the head's first byte, and be at most
    ``MAX_HEAD_BYTES`` long, give or take one reading of the socket."""

    head_within_s = HEAD_WITHIN_S
    _heading = True
    _head_bytes = 0
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._heading:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heading, self._head_bytes = True, 0
        if self._limit is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._heading = False
        self._head_came()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._limit = self.loop.call_later(self.head_within_s, self._refuse, 408)

    def _head_came(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _refuse(self, status: int) -> None:
        self._head_came()
        if not self.transport.is_closing():
            self.transport.write(_REFUSALS[status])
            self.transport.close()
