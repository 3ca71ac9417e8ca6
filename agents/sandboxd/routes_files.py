"""/v1/files: bytes in and out of the sandbox, streamed."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agents.sandboxd.files import Files
from agents.sandboxd.http import answer, body_chunks, flag
from agents.sandboxd.problems import ProblemError
from agents.wire.token import SYSTEM

_CHUNK_BYTES = 256 * 1024
_MODE = re.compile(r"0?[0-7]{3}")
T = TypeVar("T")


class FileRoutes:
    """Handlers. File work is done on threads of its own, since it may block and changes thread rights."""

    def __init__(self, files: Files, max_file_bytes: int) -> None:
        self._files = files
        self._max_file_bytes = max_file_bytes
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="files")

    async def read(self, request: Request, subject: str) -> Response:
        path = _path(request)
        fd, size = await self._run(self._files.open_for_reading, path, system=subject == SYSTEM)
        return FileBody(fd, size, self._threads)

    async def write(self, request: Request, subject: str) -> Response:
        path, mode = _path(request), _mode(request)
        chunks = body_chunks(request, self._max_file_bytes)
        first = await anext(chunks, b"")  # a body that is too large is refused before anything is made
        upload = await self._run(self._files.begin_write, path, system=subject == SYSTEM)
        try:
            await self._run(upload.write, first)
            async for chunk in chunks:
                await self._run(upload.write, chunk)
        except BaseException:
            await self._run(upload.discard)
            raise
        return answer(await self._run(upload.commit, mode))

    async def list(self, request: Request, subject: str) -> Response:
        path = request.query_params.get("path") or "."
        return answer(await self._run(self._files.list, path, system=subject == SYSTEM))

    async def delete(self, request: Request, subject: str) -> Response:
        path, recursive = _path(request), flag(request, "recursive")
        await self._run(self._files.delete, path, system=subject == SYSTEM, recursive=recursive)
        return Response(status_code=204)

    async def _run(self, function: Callable[..., T], *args: object, **kwargs: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))


class FileBody(Response):
    """A file of a known size, read as it is sent. A file that shrinks meanwhile ends the connection, so
    that the caller notices."""

    media_type = "application/octet-stream"

    def __init__(self, fd: int, size: int, threads: ThreadPoolExecutor) -> None:
        super().__init__(headers={"content-length": str(size)})
        self._fd = fd
        self._left = size
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while self._left:
                size = min(_CHUNK_BYTES, self._left)
                data = await loop.run_in_executor(self._threads, os.read, self._fd, size)
                if not data:
                    break
                self._left -= len(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            os.close(self._fd)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _path(request: Request) -> str:
    path = request.query_params.get("path")
    if not path:
        raise ProblemError(400, "BAD_PATH", "The query has no path.")
    return path


def _mode(request: Request) -> int | None:
    text = request.query_params.get("mode")
    if text is None:
        return None
    if not _MODE.fullmatch(text):
        raise ProblemError(400, "bad_request", "mode is three octal digits, such as 0644.")
    return int(text, 8)
