"""Running the short tools that this runtime needs, each with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from controlplane.errors import Permanent, Retryable


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    output: int | None = None,
) -> tuple[int, str]:
    """Exit code and what ``argv`` wrote (stdout and stderr together).

    ``output``: a descriptor that takes it instead, for a program that leaves others behind which hold on to
    it. Raises Permanent ``tool_missing``, Retryable ``tool_timeout``; then and when cancelled the whole
    process group is killed.
    """
    sink = asyncio.subprocess.PIPE if output is None else output
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=sink,
            stderr=sink if output is not None else asyncio.subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else dict(env),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise Permanent("tool_missing", f"The program {argv[0]} is not installed.") from error
    try:
        async with asyncio.timeout(timeout_s):
            written, _ = await process.communicate()
    except TimeoutError as error:
        raise Retryable("tool_timeout", f"{argv[0]} did not end within {timeout_s:g} s.", after_s=5) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode is not None
    return process.returncode, (written or b"").decode(errors="replace")
