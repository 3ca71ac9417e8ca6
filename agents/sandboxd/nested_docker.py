"""A Docker Engine inside the sandbox: started, watched until it answers, started once more if it dies.

What it needs from outside (capabilities, a file system for /var/lib/docker, delegated cgroups) is the
runtime's part. If that is missing the engine fails, and its last log lines become the part's state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agents.sandboxd.environment import DEFAULT_PATH
from agents.sandboxd.identity import DOCKER_GROUP, group_id
from agents.sandboxd.kernel import remount_writable
from agents.sandboxd.reaper import Exit, Reaper

SOCKET = "/var/run/docker.sock"
_PID_FILES = ("/var/run/docker.pid", "/var/run/docker/containerd/containerd.pid")
_UP_WITHIN_S = 30.0
_STOP_WITHIN_S = 8.0
_SHOWN_LOG_CHARS = 1500
_STARTS = 2
log = logging.getLogger("sandboxd.docker")


class NestedDocker:
    """``state`` is ``starting``, ``ready`` or ``failed: …``; ``changed`` is called whenever it changes."""

    def __init__(self, reaper: Reaper, log_path: Path, env: Mapping[str, str]) -> None:
        self._reaper = reaper
        self._log_path = log_path
        # The engine pulls images by the same way out as commands.
        self._env = {"PATH": DEFAULT_PATH, "HOME": "/root", **env}
        self._pid: int | None = None
        self._ended: asyncio.Future[Exit] | None = None
        self._stopping = False
        self._state = "starting"
        self.changed: Callable[[], None] = lambda: None

    @property
    def state(self) -> str:
        return self._state

    def _enter(self, state: str) -> None:
        self._state = state
        self.changed()

    async def run(self) -> None:
        """Keep the engine up until it died twice or ``stop`` was called."""
        make_writable()
        for attempt in range(_STARTS):
            try:
                ended = self._start()
            except OSError as error:
                self._enter(f"failed: dockerd cannot be started: {error.strerror or error}")
                return
            what = await self._watch(ended)
            if self._stopping:
                return
            again = attempt + 1 < _STARTS
            log.warning("%s%s: %s", what, ", starting it again" if again else "", self._last_log())
            self._enter("starting" if again else f"failed: {what}: {self._last_log()}")

    async def _watch(self, ended: asyncio.Future[Exit]) -> str:
        """Until the engine has ended, by itself or, if it never answers, by us. What happened, in words."""
        up = asyncio.create_task(wait_for_engine(SOCKET))
        either: set[asyncio.Future[Any]] = {up, ended}
        await asyncio.wait(either, timeout=_UP_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        what = "dockerd ended"
        if up.done():
            self._enter("ready")
        elif not ended.done() and self._pid is not None:
            what = f"dockerd did not answer within {_UP_WITHIN_S:.0f} s"
            os.kill(self._pid, signal.SIGKILL)
        await ended
        up.cancel()
        return what

    async def stop(self) -> None:
        """TERM, wait, KILL."""
        self._stopping = True
        if self._pid is None or self._ended is None or self._ended.done():
            return
        os.kill(self._pid, signal.SIGTERM)
        await asyncio.wait({self._ended}, timeout=_STOP_WITHIN_S)
        if not self._ended.done():
            os.kill(self._pid, signal.SIGKILL)

    def _start(self) -> asyncio.Future[Exit]:
        for name in _PID_FILES:
            Path(name).unlink(missing_ok=True)  # of an engine that was killed: dockerd refuses to start
        argv = ["dockerd", "-H", f"unix://{SOCKET}"]
        if group_id(DOCKER_GROUP) is not None:
            argv += ["--group", DOCKER_GROUP]
        out = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with self._reaper.starting():
                actions = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)]
                self._pid = os.posix_spawnp(
                    argv[0],
                    argv,
                    self._env,
                    file_actions=actions,
                    setsid=True,
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                )
                self._ended = self._reaper.watch(self._pid)
        finally:
            os.close(out)
        return self._ended

    def _last_log(self) -> str:
        try:
            text = self._log_path.read_text(errors="replace")
        except OSError as error:
            return f"(no log: {error.strerror})"
        return text[-_SHOWN_LOG_CHARS:].strip()


async def wait_for_engine(path: str) -> None:
    pause_s = 0.02
    while not await ping(path):
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.25)


async def ping(path: str) -> bool:
    """Whether an engine answers its /_ping on the socket ``path``."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def make_writable() -> None:
    """The engine makes control groups and sets sysctls; where those mounts came read-only they are
    remounted for this mount namespace. What stands on their other side keeps its owner and modes."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        point, options = fields[4], fields[5].split(",")
        if "ro" not in options or not (point == "/sys" or point.startswith(("/sys/fs/cgroup", "/proc/sys"))):
            continue
        try:
            remount_writable(point)
        except OSError as error:
            log.warning("%s stays read-only: %s", point, error)
