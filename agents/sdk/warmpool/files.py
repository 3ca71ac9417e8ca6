"""``sb.files``: the files of one session's workspace. Paths are relative to the workspace, or absolute in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from warmpool.commands import exec_start, foreground
from warmpool.effects import Broken, Call, Content, Emit, Flow, Open, Read, Reply, Shut, Silent, params_of, path_of
from warmpool.errors import (
    InvalidArgumentException,
    SandboxException,
    StreamBroken,
    TimeoutException,
    from_answer,
)
from warmpool.requests import request, unreachable
from warmpool.result import Transcript
from warmpool.types import FileInfo, FileList
from warmpool.verbs import Async, Sync, stream_of, verb

if TYPE_CHECKING:
    from warmpool.drivers import AsyncDriver, SyncDriver

Data = str | bytes | bytearray | Content
Entries = list[FileInfo]
Format = Literal["text", "bytes", "stream"]
# Answers to a look at a path that mean that something is there.
_PRESENT = ("IS_A_DIRECTORY", "NOT_A_FILE", "FILE_DENIED")
_ABSENT = ("FILE_NOT_FOUND", "NOT_A_DIRECTORY")
_MAKE_DIR = 'if [ -d "$1" ]; then exit 17; fi; mkdir -p -- "$1"'


class WriteEntry(TypedDict):
    """One file of ``write_files``."""

    path: str
    data: Data


class _Files:
    def __init__(self, driver: Any, session: str) -> None:
        self._driver = driver
        self._session = session

    @verb
    def write(self, path: str, data: Data, *, mode: str | None = None) -> Flow[FileInfo]:
        """Write a file as a whole, making the folders above it; it is replaced at once or not at all.

        ``data``: text (as UTF-8), bytes, a file opened in binary mode, or an iterable of bytes. ``mode``:
        octal, such as ``0755``; None keeps that of the file replaced, else 0644.
        """
        return (yield from request(self._put(path, data, mode)))

    @verb
    def write_files(self, files: Sequence[WriteEntry]) -> Flow[Entries]:
        """Write several files, in order; an error leaves those before it written."""
        written = []
        for entry in files:
            written.append((yield from request(self._put(entry["path"], entry["data"], None))))
        return written

    @verb
    def list(self, path: str = ".") -> Flow[Entries]:
        """The entries of a folder, by name. Raises NotFoundException; a folder too large to be listed whole
        raises SandboxException ``list_truncated`` rather than give a part."""
        call = Call(
            method="GET",
            path=path_of("sessions", self._session, "files", "list"),
            answer=FileList,
            params=params_of(path=path),
        )
        found = yield from request(call)
        if found.truncated:
            raise SandboxException(
                f"{path!r} has more entries than can be listed; {len(found.entries)} were sent.",
                code="list_truncated",
                hint="List it with a command (`ls -U`, `find`).",
            )
        return found.entries

    @verb
    def exists(self, path: str) -> Flow[bool]:
        """Whether there is a file, folder or anything else at ``path`` (links are followed)."""
        call = self._get(path)
        try:
            reply: Reply = yield Open(call, 30.0)
        except Broken as broken:
            raise unreachable(call, broken) from broken
        except Silent as silent:
            raise TimeoutException(f"{call.what} was not answered in time.", code="no_answer") from silent
        yield Shut()
        if reply.status == 200:
            return True
        problem = from_answer(reply.status, reply.headers, reply.body, call.what)
        if problem.code in _PRESENT:
            return True
        if problem.code in _ABSENT:
            return False
        raise problem

    @verb
    def remove(self, path: str, *, recursive: bool = True) -> Flow[None]:
        """Remove a file, a link (never what it points to) or a folder. What is missing is removed already."""
        call: Call[None] = Call(
            method="DELETE",
            path=path_of("sessions", self._session, "files"),
            answer=None,
            params=params_of(path=path, recursive=recursive),
        )
        yield from request(call)

    @verb
    def make_dir(self, path: str) -> Flow[bool]:
        """Make a folder and those above it. False if it was there."""
        spec = exec_start(["/bin/sh", "-c", _MAKE_DIR, "sh", path])
        result = yield from foreground(self._session, spec, Transcript())
        if result.exit_code not in (0, 17):
            raise InvalidArgumentException(
                f"Folder {path!r} can't be made: {result.stderr.strip() or result.error}", code="make_dir_failed"
            )
        return result.exit_code == 0

    @verb
    def _read(self, path: str) -> Flow[bytes]:
        return (yield from request(self._get(path)))

    @stream_of(bytes)
    def _pieces(self, path: str) -> Flow[None]:
        call = self._get(path)
        try:
            reply: Reply = yield Open(call, 60.0)
            if reply.status != 200:
                raise from_answer(reply.status, reply.headers, reply.body, call.what)
            while (data := (yield Read())) is not None:
                yield Emit(data)
        except (Broken, Silent) as broken:
            raise StreamBroken(
                f"Reading {path!r} broke off: {broken}.", code="stream_broken", hint="Read it again from the start."
            ) from broken

    def _get(self, path: str) -> Call[bytes]:
        return Call(
            method="GET",
            path=path_of("sessions", self._session, "files"),
            answer=bytes,
            params=params_of(path=path),
            accept="application/octet-stream",
        )

    def _put(self, path: str, data: Data, mode: str | None) -> Call[FileInfo]:
        if isinstance(data, str):
            data = data.encode()
        elif isinstance(data, (bytearray, memoryview)):
            data = bytes(data)
        return Call(
            method="PUT",
            path=path_of("sessions", self._session, "files"),
            answer=FileInfo,
            params=params_of(path=path, mode=mode),
            content=data,
            # A file or an iterable can be read only once.
            repeatable=isinstance(data, bytes),
        )


class Files(_Files, Sync):
    """The files of one session."""

    _driver: SyncDriver

    @overload
    def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    @overload
    def read(self, path: str, format: Literal["stream"]) -> Iterator[bytes]: ...
    def read(self, path: str, format: Format = "text") -> str | bytes | Iterator[bytes]:
        """A file's content: as text (UTF-8; anything else is an error), as bytes, or piece by piece."""
        if format == "stream":
            return self._pieces(path)
        return _as(format, path, self._read(path))


class AsyncFiles(_Files, Async):
    """The files of one session."""

    _driver: AsyncDriver

    @overload
    async def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    @overload
    async def read(self, path: str, format: Literal["stream"]) -> AsyncIterator[bytes]: ...
    async def read(self, path: str, format: Format = "text") -> str | bytes | AsyncIterator[bytes]:
        """As ``Files.read``."""
        if format == "stream":
            return self._pieces(path)
        return _as(format, path, await self._read(path))


def _as(format: Format, path: str, data: bytes) -> str | bytes:
    if format == "bytes":
        return data
    if format != "text":
        raise InvalidArgumentException(f"{format!r} is not text, bytes or stream.", code="invalid_format")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentException(
            f"{path!r} is not UTF-8 text (byte {error.start}).", code="not_text", hint='Read it with format="bytes".'
        ) from error
