"""File locks between processes: dropped by the kernel when their holder dies, so a crash blocks nobody."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

from controlplane.errors import Retryable

_BUCKETS = 256


class Locks:
    """A lock for the images and one per sandbox. Sandboxes share 256 files, so that none is ever removed
    (removing a lock file races with those who wait for it). Each yields its descriptor: a child process that
    inherits it holds the lock for as long as it runs, even if this process dies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sandbox(self, sandbox: str) -> contextlib.AbstractAsyncContextManager[int]:
        return self._held(f"sandbox-{zlib.crc32(sandbox.encode()) % _BUCKETS:02x}", fcntl.LOCK_EX)

    def images(self, *, shared: bool) -> contextlib.AbstractAsyncContextManager[int]:
        """Shared: the image set may be used; not shared: it may be changed."""
        return self._held("images", fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def sealing(self, ref: str) -> contextlib.AbstractAsyncContextManager[int]:
        """Held while ``ref`` is made or removed; making one may take seconds and must not hold up others."""
        return self._held(f"seal-{zlib.crc32(ref.encode()) % _BUCKETS:02x}", fcntl.LOCK_EX, patience_s=1800)

    def base(self) -> contextlib.AbstractAsyncContextManager[int]:
        """Held while a base is unpacked, which takes seconds and must not stop the images lock."""
        return self._held("base", fcntl.LOCK_EX, patience_s=1800)

    @contextlib.asynccontextmanager
    async def _held(self, name: str, kind: int, *, patience_s: float = 120) -> AsyncIterator[int]:
        handle = os.open(self._directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + patience_s
            while not _try(handle, kind):
                if loop.time() > deadline:
                    raise Retryable("sandbox_busy", f"Another process holds the lock {name}.", after_s=5)
                await asyncio.sleep(0.003)
            yield handle
        finally:
            os.close(handle)


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
