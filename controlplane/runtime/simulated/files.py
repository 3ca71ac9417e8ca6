"""Files of simulated sandboxes: absolute paths to contents; directories are what paths imply.

A sandbox starts with a copy of the files of its image.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import AsyncIterator

from agents.wire import FileInfo, FileList
from controlplane.errors import NotFound, Permanent
from controlplane.runtime.simulated.world import FileRecord, World

LARGEST_FILE_BYTES = 16 * 1024 * 1024
_MODE = re.compile(r"0?[0-7]{3,4}")


def absolute(path: str) -> str:
    """``path`` below /workspace unless absolute. Raises Permanent ``INVALID_PATH``."""
    if not path or "\0" in path or len(path) > 4096:
        raise Permanent("INVALID_PATH", "A path has 1 to 4096 characters and no NUL.")
    whole = posixpath.normpath(posixpath.join("/workspace", path))
    return "/" + whole.lstrip("/")


def content(world: World, sandbox: str, path: str) -> bytes | None:
    record = world.file(sandbox, path)
    return record.data if record else None


async def write(world: World, sandbox: str, path: str, data: AsyncIterator[bytes], mode: str | None) -> FileInfo:
    whole = absolute(path)
    if mode is not None and not _MODE.fullmatch(mode):
        raise Permanent("INVALID_MODE", f"Mode {mode[:20]!r} is not octal, such as 0644.")
    received = bytearray()
    async for chunk in data:
        received += chunk
        if len(received) > LARGEST_FILE_BYTES:
            raise Permanent("FILE_TOO_LARGE", f"Simulated sandboxes keep files of up to {LARGEST_FILE_BYTES} bytes.")
    record = FileRecord(path=whole, mode=(mode or "0644").zfill(4), modified_at=time.time(), data=bytes(received))
    world.write_file(sandbox, record)
    return _info(record)


def listing(world: World, sandbox: str, path: str) -> FileList:
    """Entries directly in ``path``. Raises NotFound ``FILE_NOT_FOUND`` where nothing is below it."""
    whole = absolute(path)
    prefix = whole.rstrip("/") + "/"
    entries: dict[str, FileInfo] = {}
    for record in world.files(sandbox):
        if not record.path.startswith(prefix):
            continue
        name, _, rest = record.path[len(prefix) :].partition("/")
        entries[name] = _info(record) if not rest else _directory(prefix + name, record.modified_at)
    if not entries and whole not in ("/", "/workspace"):
        raise NotFound("FILE_NOT_FOUND", f"There is no directory {path[:200]!r}.")
    return FileList(path=whole, entries=[entries[name] for name in sorted(entries)])


def delete(world: World, sandbox: str, path: str, recursive: bool) -> None:
    whole = absolute(path)
    below = [record.path for record in world.files(sandbox) if record.path.startswith(whole.rstrip("/") + "/")]
    if below and not recursive:
        raise Permanent("DIRECTORY_NOT_EMPTY", f"{path[:200]!r} is not empty.", hint="Ask for recursive.")
    for each in [whole, *below]:
        world.delete_file(sandbox, each)


def _info(record: FileRecord) -> FileInfo:
    return FileInfo(
        path=record.path,
        kind="file",
        size=len(record.data),
        mode=record.mode,
        modified_at=record.modified_at,
    )


def _directory(path: str, modified_at: float) -> FileInfo:
    return FileInfo(path=path, kind="directory", size=0, mode="0755", modified_at=modified_at)
