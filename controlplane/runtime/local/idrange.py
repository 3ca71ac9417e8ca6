"""Unpacking a base into the id range of sandboxes, from within a user namespace that has this range.

tar then chowns, sets set-uid bits and file capabilities as its own root, so the kernel shifts all of them;
a pass of chown over an unshifted tree would drop the latter two.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import Permanent, Retryable
from controlplane.runtime.local.process import run

_UNPACK_TIMEOUT_S = 300.0
_DISK_FULL_WORDS = "No space left"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """Host ids ``start`` … ``start + count - 1`` are 0 … ``count - 1`` in every sandbox."""

    start: int
    count: int = 65536


async def unpack(tar: Path, target: Path, ids: IdRange, lock: int) -> None:
    """Unpack ``tar`` into the empty directory ``target``, owners shifted into ``ids``.

    Device files are left out: a user namespace cannot make them, and every sandbox gets its own /dev.
    ``lock``: a descriptor that the unpacking process inherits.
    Raises Permanent ``unpack_failed``, Retryable ``disk_full``.
    """
    os.chown(target, ids.start, ids.start)
    async with _namespace(ids) as pid:
        with tar.open("rb") as source:
            # Directory and file are inherited open: the namespace's root need not reach them by path.
            code, output = await run(
                [
                    *("nsenter", "--target", str(pid), "--user", "--setuid", "0", "--setgid", "0", "--"),
                    *("tar", "--extract", "--numeric-owner", "--same-owner", "--preserve-permissions"),
                    *("--xattrs", "--xattrs-include=*", "--exclude=./dev/*"),
                ],
                timeout_s=_UNPACK_TIMEOUT_S,
                cwd=target,
                stdin=source.fileno(),
                pass_fds=(lock,),
            )
    if code != 0 and _DISK_FULL_WORDS in output:
        raise Retryable("disk_full", "The disk is full: a base could not be unpacked.", after_s=60, hint="Free 2 GB.")
    if code != 0:
        raise Permanent("unpack_failed", f"tar could not unpack {tar.name}: {output.strip()[-1000:]}")


@contextlib.asynccontextmanager
async def _namespace(ids: IdRange) -> AsyncIterator[int]:
    """The pid of a process that holds a user namespace with ``ids`` as its range."""
    holder = await asyncio.create_subprocess_exec(
        *("unshare", "--user", "cat"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        async with asyncio.timeout(10):
            # cat answers only after unshare has made the namespace.
            holder.stdin.write(b"\n")
            if await holder.stdout.read(1) != b"\n":
                raise Permanent("user_namespace_unavailable", "This host lets nobody make a user namespace.")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{kind}").write_text(f"0 {ids.start} {ids.count}")
        yield holder.pid
    finally:
        holder.stdin.close()
        await holder.wait()
