"""A real sandboxd as a child process, in folders of its own, and a client for its door."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from agents.wire import EventPage, ExecEvent, ExecStatus, mint

KEY = bytes(range(32))
SANDBOX = "sb-test"
REPOSITORY = Path(__file__).parents[2]
_CGROUPS = Path("/sys/fs/cgroup")
START = [sys.executable, "-c", "import sys; from agents.sandboxd.main import main; sys.exit(main(sys.argv[1:]))"]
T = TypeVar("T")
_numbers = itertools.count(1)


@dataclass
class Daemon:
    """One daemon; ``http`` carries ``system`` tokens unless told otherwise."""

    process: subprocess.Popen[bytes]
    folder: Path
    http: httpx.AsyncClient
    cgroup_roots: dict[str, str]
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def headers(self, subject: str = "system", *, lasts_s: float = 600.0) -> dict[str, str]:
        return {"authorization": f"Bearer {mint(KEY, SANDBOX, subject, time.time() + lasts_s)}"}

    async def call(self, method: str, path: str, subject: str = "system", **options: Any) -> httpx.Response:
        return await self.http.request(method, path, headers=self.headers(subject), **options)

    async def bind(self, claim: str = "se-1", **fields: Any) -> httpx.Response:
        body = {"claim_id": claim, "tenant": "acme", "now": time.time(), **fields}
        return await self.call("POST", "/v1/bind", json=body)

    async def start(self, script: str | None = None, subject: str = "system", **spec: Any) -> ExecStatus:
        body = {"id": f"c{next(self.ids)}", "script": script, **spec}
        return decoded(await self.call("POST", "/v1/exec", subject, json=body), ExecStatus)

    async def status(self, exec_id: str) -> ExecStatus:
        return decoded(await self.call("GET", f"/v1/exec/{exec_id}"), ExecStatus)

    async def until(self, exec_id: str, kind: str, *, after: int = 0, within_s: float = 30.0) -> list[ExecEvent]:
        """All events of a command up to the first of ``kind``, by long polls."""
        events: list[ExecEvent] = []
        deadline = time.monotonic() + within_s
        while not any(event.kind == kind for event in events):
            assert time.monotonic() < deadline, f"no {kind} in {events[-5:]}"
            path = f"/v1/exec/{exec_id}/events?after={after}&wait_s=5"
            page = decoded(await self.call("GET", path), EventPage)
            events += page.events
            after = page.next_after
        return events

    async def run(self, script: str | None = None, *, until: str = "closed", **spec: Any) -> Result:
        status = await self.start(script, **spec)
        return Result(await self.until(status.id, until))

    def group_of(self, status: ExecStatus) -> list[Path]:
        return [path for root in self.cgroup_roots.values() for path in Path(root).glob("cmd-*")]


@dataclass
class Result:
    events: list[ExecEvent]

    @property
    def stdout(self) -> str:
        return "".join(event.text or "" for event in self.events if event.kind == "stdout")

    @property
    def stderr(self) -> str:
        return "".join(event.text or "" for event in self.events if event.kind == "stderr")

    @property
    def status(self) -> ExecStatus:
        found = next(event.status for event in self.events if event.kind == "exited")
        assert found is not None
        return found


def decoded(response: httpx.Response, kind: type[T]) -> T:
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=kind)


def problem(response: httpx.Response) -> tuple[int, str]:
    """Status and code of an error answer."""
    return response.status_code, response.json()["code"]


async def eventually(what: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.02)


def children_of(pid: int) -> list[tuple[int, str]]:
    """(pid, state letter) of the direct children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append((int(folder.name), fields[0]))
    return found


def can_delegate() -> bool:
    return os.geteuid() == 0 and (_CGROUPS / "memory" / "tasks").exists()


def delegate(version: int) -> dict[str, str]:
    """Fresh cgroup directories for one daemon: version 1 with the unified hierarchy beside, or version 2."""
    name = f"warmpool-test-{os.getpid()}-{next(_numbers)}"
    unified = next((p for p in (_CGROUPS / "unified", _CGROUPS) if (p / "cgroup.procs").exists()), None)
    roots: dict[str, Path] = {}
    if version == 2 and unified is not None:
        roots["v2"] = unified / name
    elif version == 1:
        for controller in ("memory", "pids", "cpu", "cpuacct", "freezer"):
            if (_CGROUPS / controller / "tasks").exists():
                roots[controller] = _CGROUPS / controller / name
        if unified is not None and unified != _CGROUPS:
            roots["unified"] = unified / name
    for root in roots.values():
        root.mkdir()
    return {key: str(path) for key, path in roots.items()}


def remove_delegated(roots: dict[str, str]) -> None:
    """Also what a killed daemon left; processes in it are ended first."""
    for root in map(Path, roots.values()):
        for folder in sorted(root.rglob("*/"), key=lambda path: -len(path.parts)):
            _rmdir(folder)
        _rmdir(root)


def _rmdir(folder: Path) -> None:
    deadline = time.monotonic() + 5
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            with contextlib.suppress(OSError):
                for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                    os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline, f"{folder} cannot be removed"
            time.sleep(0.02)


def make_config(folder: Path, **changes: Any) -> Path:
    """A configuration in a folder that only its owner can enter; the workspace is the user's."""
    root = os.geteuid() == 0
    uid, gid = (1000, 1000) if root else (os.getuid(), os.getgid())
    secret = folder / "config"
    secret.mkdir(mode=0o700, exist_ok=True)
    workspace = folder / "workspace"
    workspace.mkdir(mode=0o755, exist_ok=True)
    if root:
        os.chown(workspace, uid, gid)
    config = {
        "sandbox_id": SANDBOX,
        "key_hex": KEY.hex(),
        "listen": {"path": str(folder / "door.sock")},
        "workspace": str(workspace),
        "user": {"name": "agent", "uid": uid, "gid": gid, "home": "/home/agent"},
        "spool_dir": str(folder / "spool"),
        **changes,
    }
    path = secret / "sandboxd.json"
    path.write_text(json.dumps(config))
    return path


@contextlib.asynccontextmanager
async def running(
    *,
    cgroups: int | None = 1,
    delegated: dict[str, Any] | None = None,
    command: list[str] | None = None,
    **changes: Any,
) -> AsyncIterator[Daemon]:
    """A daemon that is ready; stopped, and its traces removed, afterwards.

    ``cgroups`` is the version to delegate (where the machine can), None for none at all; ``delegated``
    gives groups of the caller's own instead.
    """
    # Not pytest's folder: the sandbox's user may not enter that.
    folder = Path(tempfile.mkdtemp(prefix="wp-sbx-"))
    folder.chmod(0o755)
    roots = delegate(cgroups) if cgroups is not None and delegated is None and can_delegate() else {}
    if roots:
        delegated = {"version": cgroups, "roots": roots}
    if delegated is not None:
        changes["cgroups"] = delegated
    config = make_config(folder, **changes)
    process = launch([*(command or START), str(config)])
    transport = httpx.AsyncHTTPTransport(uds=str(folder / "door.sock"), limits=httpx.Limits(max_connections=200))
    try:
        await eventually(lambda: (folder / "door.sock").exists() or process.poll() is not None, 20)
        assert process.poll() is None, f"sandboxd ended with {process.returncode}"
        async with httpx.AsyncClient(transport=transport, base_url="http://sandbox", timeout=30) as http:
            daemon = Daemon(process, folder, http, roots)
            await eventually_answers(daemon)
            yield daemon
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        remove_delegated(roots)
        shutil.rmtree(folder)


def launch(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL)


async def eventually_answers(daemon: Daemon, within_s: float = 20.0) -> None:
    """The socket exists a moment before it is listened to."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            await daemon.http.get("/v1/hello")
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
