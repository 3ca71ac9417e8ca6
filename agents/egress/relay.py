"""Carrying bytes: reading what a client sent, a tunnel's two directions, the idle limit, orderly ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable

from agents.egress.head import BadHead, find_end
from agents.egress.limits import CHUNK_BYTES

Read = Callable[[int], Awaitable[bytes]]


class Inbound:
    """The client's side of a connection for reading; keeps what came behind a head for whoever is next."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._pending = b""

    async def read_head(self, *, first_byte_s: float, head_s: float) -> bytes | None:
        """The raw head up to and with its empty line; None if the client sent nothing (more).

        Raises BadHead, also when the head is not complete ``head_s`` seconds after its first byte.
        """
        if not self._pending:
            try:
                async with asyncio.timeout(first_byte_s):
                    self._pending = await self._reader.read(CHUNK_BYTES)
            except TimeoutError:
                return None
            if not self._pending:
                return None
        try:
            async with asyncio.timeout(head_s):
                return await self._collect_head()
        except TimeoutError as error:
            detail = f"The head did not arrive within {head_s:g} s."
            raise BadHead("head_timeout", detail, status=408) from error

    async def _collect_head(self) -> bytes:
        buffer, scanned = bytearray(self._pending), 0
        self._pending = b""
        while (end := find_end(buffer, scanned)) is None:
            scanned = len(buffer)
            data = await self._reader.read(CHUNK_BYTES)
            if not data:
                raise BadHead("incomplete_head", "The connection ended inside the head.")
            buffer += data
        self._pending = bytes(buffer[end:])
        return bytes(buffer[:end])

    async def read(self, limit: int) -> bytes:
        if self._pending:
            data, self._pending = self._pending[:limit], self._pending[limit:]
            return data
        return await self._reader.read(limit)

    def unread(self, data: bytes) -> None:
        self._pending = data + self._pending


class IdleTimer:
    """Calls ``on_idle`` once, when ``touch`` was not called for ``limit_s`` seconds."""

    def __init__(self, limit_s: float, on_idle: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._on_idle = on_idle
        self._last = self._loop.time()
        self._handle = self._loop.call_later(limit_s, self._check)

    def touch(self) -> None:
        # Only a time is noted: re-arming a timer for every chunk would cost more than the relaying.
        self._last = self._loop.time()

    def stop(self) -> None:
        self._handle.cancel()

    def _check(self) -> None:
        left = self._last + self._limit_s - self._loop.time()
        if left <= 0:
            self._on_idle()
        else:
            self._handle = self._loop.call_later(left, self._check)


async def relay(
    client_read: Read,
    client_writer: asyncio.StreamWriter,
    upstream_reader: asyncio.StreamReader,
    upstream_writer: asyncio.StreamWriter,
    *,
    on_up: Callable[[int], None],
    on_down: Callable[[int], None],
) -> None:
    """A tunnel until both directions have ended; each may end before the other. Cancelling it is safe."""
    await asyncio.gather(
        _pump(client_read, upstream_writer, on_up, abort=(client_writer, upstream_writer)),
        _pump(upstream_reader.read, client_writer, on_down, abort=(client_writer, upstream_writer)),
    )


async def _pump(
    read: Read,
    writer: asyncio.StreamWriter,
    count: Callable[[int], None],
    *,
    abort: tuple[asyncio.StreamWriter, ...],
) -> None:
    while True:
        try:
            data = await read(CHUNK_BYTES)
        except OSError:
            # The source was reset: the other side must not take this for a complete end.
            for each in abort:
                reset(each)
            return
        try:
            if not data:
                await end_of_stream(writer)
                return
            count(len(data))
            writer.write(data)
            await writer.drain()
        except OSError:
            # The sink is gone; what it still had sent is delivered by the other direction.
            return


async def end_of_stream(writer: asyncio.StreamWriter) -> None:
    """Half-closes ``writer`` after everything written has left; the peer's pace is respected."""
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()


def reset(writer: asyncio.StreamWriter) -> None:
    """Cuts at once, so that a TCP peer sees a reset: a plain abort sends the same FIN as a complete end."""
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close_writer(writer: asyncio.StreamWriter, *, linger_s: float) -> None:
    """Closes; what the peer has not taken after ``linger_s`` is dropped."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(linger_s):
            writer.close()
            await writer.wait_closed()
            return
    writer.transport.abort()
