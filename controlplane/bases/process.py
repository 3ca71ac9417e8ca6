"""Running one tool to its end, with a time limit, its whole process group killed when it is not awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from controlplane.errors import Permanent

OUTPUT_LIMIT_BYTES = 256 * 1024


async def run_tool(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    on_line: Callable[[str], None] | None = None,
) -> tuple[int, str]:
    """Exit code and the last 256 KiB of what ``argv`` wrote to stdout and stderr together.

    ``env`` None inherits. ``pass_fds``: descriptors it inherits. ``on_line`` gets each line as it comes.
    Raises Permanent ``tool_missing`` when there is no such program and ``tool_timeout`` after ``timeout_s``;
    then and on cancellation every process of its group is killed.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=None if env is None else dict(env),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise Permanent("tool_missing", f"The program {argv[0]} is not installed.") from error
    try:
        async with asyncio.timeout(timeout_s):
            output = await _collect(process, on_line)
            return await process.wait(), output
    except TimeoutError as error:
        raise Permanent("tool_timeout", f"{argv[0]} did not end within {timeout_s:g} s.") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _collect(process: asyncio.subprocess.Process, on_line: Callable[[str], None] | None) -> str:
    assert process.stdout is not None
    kept, open_line = bytearray(), b""
    while chunk := await process.stdout.read(65536):
        kept += chunk
        del kept[:-OUTPUT_LIMIT_BYTES]
        if on_line is not None:
            *lines, open_line = (open_line + chunk).split(b"\n")
            open_line = open_line[-OUTPUT_LIMIT_BYTES:]
            for line in lines:
                on_line(line.decode(errors="replace"))
    return kept.decode(errors="replace")
