"""One HTTP/1.1 connection to a door, as an asyncio protocol on httptools.

Leaner than a general HTTP client, since every bind pays for a new connection and a claim's whole budget is
3 ms (see docs of ``unix_client``). The peer is hostile: head and buffered body are bounded, bytes that
nobody asked for close the connection, and a body without a length or chunks counts as cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

import httptools

MAX_HEAD_BYTES = 32 * 1024
PAUSE_BYTES = 256 * 1024
RESUME_BYTES = 64 * 1024


class ConnectionCut(Exception):
    """The exchange can't be finished. ``answered``: some of the answer had come before."""

    def __init__(self, detail: str, *, answered: bool) -> None:
        super().__init__(detail)
        self.answered = answered


class BodyTooLarge(Exception):
    """The answer is larger than the caller allows."""


class DoorConnection(asyncio.Protocol):
    """One exchange at a time: ``request``, then the body by ``chunks`` or ``read``, then free again if ``reusable``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._failure: str | None = None
        self._drained: asyncio.Future[None] | None = None
        self._paused = False
        self._busy = False
        self._spent = False
        self._queue: deque[bytes] = deque()
        self._buffered = 0
        self._head_bytes = 0
        self._complete = False
        self._head: asyncio.Future[int] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._parser: httptools.HttpResponseParser | None = None

    @property
    def reusable(self) -> bool:
        return self._failure is None and not self._busy and not self._spent

    async def request(self, head: bytes, upload: AsyncIterator[bytes] | None = None, stall_s: float = 60.0) -> int:
        """Send a request (``head`` may include a body; ``upload`` follows in chunks) and return the status.

        ``stall_s``: how long the peer may take nothing of an upload, or give no answer to it (TimeoutError).
        """
        if self._failure is not None:
            raise ConnectionCut(self._failure, answered=False)
        self._queue.clear()
        self._buffered = self._head_bytes = 0
        self._complete = False
        self._busy = True
        answer: asyncio.Future[int] = self._loop.create_future()
        self._head = answer
        self._parser = httptools.HttpResponseParser(self)
        try:
            self._open_transport().write(head)
            if upload is None:
                return await answer
            await self._send_chunks(upload, answer, stall_s)
            async with asyncio.timeout(stall_s):
                return await answer
        except BaseException:
            self.abort("the exchange was given up")
            raise

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises ConnectionCut if it ends before its end."""
        try:
            while True:
                while self._queue:
                    chunk = self._queue.popleft()
                    self._buffered -= len(chunk)
                    self._resume()
                    yield chunk
                if self._complete:
                    return
                if self._failure is not None:
                    raise ConnectionCut(self._failure, answered=True)
                self._arrival = self._loop.create_future()
                await self._arrival
        finally:
            if not self._complete or self._queue:
                self.abort("the answer was not read to its end")

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises BodyTooLarge beyond ``limit`` bytes."""
        if self._complete:  # The usual case: head and body came in one piece.
            if self._buffered > limit:
                self.abort("the answer is too large")
                raise BodyTooLarge
            body = b"".join(self._queue)
            self._queue.clear()
            return body
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                self.abort("the answer is too large")
                raise BodyTooLarge
            parts.append(chunk)
        return b"".join(parts)

    def abort(self, why: str) -> None:
        self._fail(why)
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended: {exc}" if exc else "the connection ended")

    def data_received(self, data: bytes) -> None:
        if not self._busy or self._parser is None:
            self.abort("the peer sent what nobody asked for")
            return
        if self._head is not None and not self._head.done():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES + PAUSE_BYTES:
                self.abort("the head of the answer is too large")
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort(f"the answer is not HTTP: {error}")

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # -- httptools callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self.abort("the peer answered twice")

    def on_headers_complete(self) -> None:
        if self._head is not None and not self._head.done() and self._parser is not None:
            self._head.set_result(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self._queue.append(body)
        self._buffered += len(body)
        if self._buffered > PAUSE_BYTES and not self._paused:
            self._paused = True
            self._open_transport().pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        self._complete = True
        self._busy = False
        if self._parser is not None and not self._parser.should_keep_alive():
            self._failure = "the peer closes this connection"
            self._open_transport().close()
        self._wake()

    # -- inner steps

    async def _send_chunks(self, upload: AsyncIterator[bytes], answer: asyncio.Future[int], stall_s: float) -> None:
        transport = self._open_transport()
        async for chunk in upload:
            if answer.done():
                # The peer answered before it had all (a refusal): what it did not read spoils the connection.
                self._spent = True
                return
            if chunk:
                transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if self._drained is not None:
                async with asyncio.timeout(stall_s):
                    await self._drained
        transport.write(b"0\r\n\r\n")

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise ConnectionCut("not connected", answered=False)
        return self._transport

    def _resume(self) -> None:
        if self._paused and self._buffered < RESUME_BYTES:
            self._paused = False
            if self._failure is None:
                self._open_transport().resume_reading()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = why
        if self._head is not None and not self._head.done():
            self._head.set_exception(ConnectionCut(why, answered=self._head_bytes > 0))
            self._head.exception()  # Seen here, so that an abandoned exchange does not warn.
        self.resume_writing()
        self._wake()
