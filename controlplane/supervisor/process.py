"""One supervised child process: start, restart with back-off, stop. Its output goes to a log file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_MAX_LOG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """``stop_s``: how long it may take to end after SIGTERM before SIGKILL. ``nice``: how much it gives way to
    the others: refills and builds run beside attaches that a user waits for."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    stop_s: float = 10.0
    nice: int = 0


def _prepare(nice: int) -> None:
    os.nice(nice)
    # The supervisor may be killed with -9. Roles that outlived it, even for as long as an orderly end takes, would
    # meet those of the next one: two servers on one append-only file, and the old one removes the socket of the new.
    # Every role may be killed at any step, so this is no loss.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """Runs a role until ``stop``; a role that ends by itself is started again after 0.2 to 10 s."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.restarts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        await self._spawn()
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        self._stopping = True
        process = self._process
        if process and process.returncode is None:
            _signal(process, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), self.role.stop_s)
            except TimeoutError:
                _signal(process, signal.SIGKILL)
                await process.wait()
        if self._task:
            self._task.cancel()

    async def _spawn(self) -> None:
        self.role.log.parent.mkdir(parents=True, exist_ok=True)
        if self.role.log.exists() and self.role.log.stat().st_size > _MAX_LOG_BYTES:
            self.role.log.replace(self.role.log.with_suffix(".old"))
        with self.role.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.role.argv,
                env=dict(self.role.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the supervisor alone, which stops in order
                preexec_fn=lambda: _prepare(self.role.nice),
            )

    async def _keep_running(self) -> None:
        backoff_s = 0.2
        while not self._stopping:
            assert self._process is not None
            started = time.monotonic()
            await self._process.wait()
            if self._stopping:
                return
            backoff_s = 0.2 if time.monotonic() - started > 30 else min(backoff_s * 2, 10.0)
            await asyncio.sleep(backoff_s)
            self.restarts += 1
            await self._spawn()


def _signal(process: asyncio.subprocess.Process, signum: signal.Signals) -> None:
    try:
        os.kill(process.pid, signum)
    except ProcessLookupError:
        return


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message; empty if there is none."""
    try:
        data = path.read_bytes()[-16_384:]
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])
