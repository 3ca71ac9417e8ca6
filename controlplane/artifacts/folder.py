"""Build logs in a folder: ``<root>/<build>/<NN>-<step>/`` with ``head``, and ``tail-N`` once the log is too large.

The first half of the allowed size is kept for good, and of the rest the newest two quarters: what matters
of a log that is too large is how it began and how it ended.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from controlplane.artifacts.port import LogChunk
from controlplane.errors import Permanent, Retryable
from controlplane.ids import BuildId

T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")


class FolderBuildLogs:
    """``max_bytes``: kept log of one step; what is cut is the middle."""

    def __init__(self, root: Path, *, max_bytes: int = 8 * 1024 * 1024) -> None:
        self._root = root
        self._head_bytes = max_bytes // 2
        self._tail_bytes = max(1, max_bytes // 4)

    async def append(self, build: BuildId, step: str, text: str) -> None:
        await self._threaded(lambda: self._append(self._folder(build, step, make=True), text.encode()))

    async def restart(self, build: BuildId, step: str) -> None:
        def empty() -> None:
            for part in _parts(self._folder(build, step, make=True)).values():
                part.unlink(missing_ok=True)

        await self._threaded(empty)

    async def read(self, build: BuildId, step: str, offset: int, limit_bytes: int) -> LogChunk:
        return await self._threaded(lambda: self._read(build, step, max(0, offset), limit_bytes))

    async def steps(self, build: BuildId) -> list[str]:
        def names() -> list[str]:
            folder = self._root / _checked(build)
            found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
            return [name.partition("-")[2] for name in found]

        return await self._threaded(names)

    async def builds(self) -> dict[BuildId, float]:
        def ages() -> dict[BuildId, float]:
            folders = self._root.iterdir() if self._root.is_dir() else ()
            return {BuildId(path.name): path.stat().st_mtime for path in folders if _NAME.fullmatch(path.name)}

        return await self._threaded(ages)

    async def delete(self, build: BuildId) -> None:
        await self._threaded(lambda: shutil.rmtree(self._root / _checked(build), ignore_errors=True))

    def _folder(self, build: BuildId, step: str, *, make: bool = False) -> Path:
        above, step = self._root / _checked(build), _checked(step)
        known = sorted(path.name for path in above.iterdir()) if above.is_dir() else []
        name = next((name for name in known if name.partition("-")[2] == step), None)
        folder = above / (name or f"{len(known):03d}-{step}")
        if make:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def _append(self, folder: Path, data: bytes) -> None:
        parts = _parts(folder)
        head = folder / "head-0"
        free = self._head_bytes - (head.stat().st_size if 0 in parts else 0)
        if free > 0:
            with head.open("ab") as handle:
                handle.write(data[:free])
            data = data[free:]
        while data:
            parts = _parts(folder)
            last = max((offset for offset in parts if offset), default=None)
            size = parts[last].stat().st_size if last is not None else 0
            if last is None or size >= self._tail_bytes:
                end = self._head_bytes if last is None else last + size
                last, size = end, 0
                parts[end] = folder / f"tail-{end}"
            room = self._tail_bytes - size
            with parts[last].open("ab") as handle:
                handle.write(data[:room])
            data = data[room:]
            for old in sorted(offset for offset in parts if offset)[:-2]:
                parts[old].unlink(missing_ok=True)

    def _read(self, build: BuildId, step: str, offset: int, limit: int) -> LogChunk:
        held, start = b"", offset
        for begin, path in sorted(_parts(self._folder(build, step)).items()):
            try:
                end = begin + path.stat().st_size
                if end <= start or len(held) >= limit:
                    continue
                if begin > start:
                    if held:
                        break
                    start = offset = begin
                with path.open("rb") as handle:
                    handle.seek(start - begin)
                    held += handle.read(limit - len(held))
            except FileNotFoundError:
                continue
            start = offset + len(held)
        whole = _whole_characters(held)
        return LogChunk(step=step, offset=offset, next_offset=offset + len(whole), text=whole.decode(errors="replace"))

    async def _threaded(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise Retryable(
                "log_not_written",
                f"The build log can't be kept in {self._root}: {error.strerror}.",
                hint="Free space in the state folder.",
                after_s=5.0,
            ) from error


def _parts(folder: Path) -> dict[int, Path]:
    """Files by the offset of their first byte in the whole log."""
    found = folder.iterdir() if folder.is_dir() else ()
    return {int(path.name.partition("-")[2]): path for path in found}


def _whole_characters(data: bytes) -> bytes:
    """Without a character that is cut off at the end, unless nothing else is there."""
    for cut in range(1, min(4, len(data)) + 1):
        byte = data[-cut]
        if byte & 0xC0 == 0x80:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-cut] if needs > cut and len(data) > cut else data
    return data


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Permanent("invalid_log_name", f"{name[:80]!r} is no name of a build or step.")
    return name
