"""The daemon's ends of a command's three pipes, on the event loop."""

from __future__ import annotations

import asyncio
import os
from collections import deque

from agents.sandboxd.output import History, Stream

_READ_BYTES = 64 * 1024
STDIN_PENDING_BYTES = 4 * 1024 * 1024


class OutputPipe:
    """Moves what a command writes into its history until the last holder closes the pipe."""

    def __init__(self, fd: int, stream: Stream, history: History) -> None:
        self._fd = fd
        self._stream: Stream = stream
        self._history = history
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def drain(self, limit_bytes: int = 1024 * 1024) -> None:
        """Take what is there now, so that output written before an exit precedes it in the history."""
        while not self.ended.done() and limit_bytes > 0:
            taken = self._read()
            if not taken:
                return
            limit_bytes -= taken

    def close(self) -> None:
        """Stop listening, whoever still holds the other end."""
        if self.ended.done():
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._history.finish(self._stream)
        self.ended.set_result(None)

    def _read(self) -> int:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            return 0
        self._history.write(self._stream, data)
        return len(data)


class InputPipe:
    """Feeds a command's stdin from memory. Writing to a command that reads no more loses the rest, as a
    terminal would; ``closed`` tells."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self._pending = 0
        self._eof = False
        self.closed = False
        os.set_blocking(fd, False)

    def room_for(self, size: int) -> bool:
        return self._pending == 0 or self._pending + size <= STDIN_PENDING_BYTES

    def send(self, data: bytes, *, eof: bool) -> None:
        if self.closed or self._eof:
            return
        idle = not self._queue
        if data:
            self._queue.append(data)
            self._pending += len(data)
        self._eof = eof
        if idle:
            self._loop.add_writer(self._fd, self._write)
            self._write()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._queue.clear()

    def _write(self) -> None:
        while self._queue:
            data = self._queue[0]
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            self._pending -= written
            if written < len(data):
                self._queue[0] = data[written:]
                return
            self._queue.popleft()
        self._loop.remove_writer(self._fd)
        if self._eof:
            self.close()
