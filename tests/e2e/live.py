"""A whole deployment as its users and its host see it: started, asked, killed, and looked at for what it leaves."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import redis

from tests.engines import cache_dir
from warmpool import NotFoundException, Sandbox, Warmpool

T = TypeVar("T")
CGROUP_PARENT = "warmpool-e2e"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "deployment.py"
SMALL = {"memory_bytes": 256 << 20, "cpu_cores": 1, "pids": 256}

_spec = importlib.util.spec_from_file_location("deployment_script", SCRIPT)
assert _spec is not None and _spec.loader is not None
_script = importlib.util.module_from_spec(_spec)
# Dataclasses look their module up by name while they are made.
sys.modules["deployment_script"] = _script
_spec.loader.exec_module(_script)


def until(what: str, look: Callable[[], T], *, within_s: float = 60.0, every_s: float = 0.1) -> T:
    """The first truthy answer of ``look``; an error that names ``what`` and the last answer otherwise.

    An exception of ``look`` counts as an answer: what is being restarted may refuse."""
    deadline = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            found = look()
            if found:
                return found
            last = found
        except Exception as error:
            last = error
        time.sleep(every_s)
    raise AssertionError(f"not within {within_s:g} s: {what}; last: {last!r}")


@dataclass
class Live:
    """One deployment of the local runtime, or of another kind by ``settings``. ``folder``: its state."""

    name: str
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    keep_sandboxes: bool = False
    url: str = ""
    api_key: str = ""
    _process: Any = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "WARMPOOL_API__PORT": "0",
            "WARMPOOL_RUNTIME__KIND": "local",
            "WARMPOOL_RUNTIME__CGROUP_PARENT": CGROUP_PARENT,
            "WARMPOOL_CACHE_DIR": str(cache_dir()),
            **self.settings,
        }

    # -- life

    def up(self, within_s: float = 120.0) -> Live:
        credentials = self.folder / "credentials.json"
        credentials.unlink(missing_ok=True)
        self._process = _script.start(
            self.folder, name=self.name, settings=self.environment, keep_sandboxes=self.keep_sandboxes
        )
        found = _script.wait_until_up(self._process, credentials, within_s)
        self.url, self.api_key = found["url"], found["api_key"]
        return self

    def stop(self) -> None:
        if self._process is not None:
            _script.stop(self._process)

    def down(self) -> None:
        """Destroy every sandbox of a deployment that was stopped or killed."""
        command = [sys.executable, "-m", "controlplane.cli", "down", "--state-dir", str(self.folder)]
        command += ["--deployment", self.name]
        environment = {**os.environ, **self.environment}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        for group in sorted(self._cgroups()):
            with contextlib.suppress(OSError):
                group.rmdir()

    def _cgroups(self) -> list[Path]:
        """The deployment's directory in each hierarchy. Others' come and go meanwhile: only named ones are read."""
        mounted = Path("/sys/fs/cgroup")
        roots = [mounted, *mounted.glob("*/")]
        return [found for root in roots if (found := root / CGROUP_PARENT / self.name).is_dir()]

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def kill(self, role: str | None = None, signum: int = signal.SIGKILL) -> list[int]:
        """Send a signal to the processes of a role, to the ``supervisor``, or (None) to all of them at once."""
        found = [pid for pid, name in self.roles().items() if role in (None, name)]
        if role in (None, "supervisor"):
            found.insert(0, self.pid)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        if self.pid in found and signum == signal.SIGKILL:
            self._process.wait()
        return found

    def roles(self) -> dict[int, str]:
        """Process id → role of what ``up`` has started and runs now."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    words = stat.with_name("cmdline").read_bytes().decode(errors="replace").split("\0")
                    found[int(stat.parent.name)] = _role(words)
        return found

    def log(self, role: str) -> str:
        path = self.folder / "logs" / f"{role}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- what its users do

    def api(self, **how: Any) -> Warmpool:
        return Warmpool(api_url=self.url, api_key=self.api_key, **how)

    def http(
        self, method: str, path: str, body: object = None, *, within_s: float = 60.0, **how: Any
    ) -> httpx.Response:
        """One plain request, as any client would make it."""
        headers = {"Authorization": f"Bearer {self.api_key}", **how.pop("headers", {})}
        if body is not None:
            how["json"] = body
        return httpx.request(method, self.url + path, headers=headers, timeout=within_s, trust_env=False, **how)

    def declare(self, name: str, *, min_ready: int, max_total: int, **template: Any) -> None:
        """A template and a pool of the same name."""
        with self.api() as api:
            api.templates.put(name, {"base": "debian12", "resources": SMALL, **template})
            api.pools.put(name, {"template": name, "min_ready": min_ready, "max_total": max_total})

    def filled(self, pool: str, ready: int, *, within_s: float = 120.0) -> None:
        """Wait until the pool has as many ready ones, and nothing of it is on its way."""

        def look() -> bool:
            with self.api() as api:
                counts = api.pools.get(pool).counts
            assert (counts.ready, counts.building, counts.draining, counts.failed) == (ready, 0, 0, 0), counts
            return True

        until(f"pool {pool} has {ready} ready", look, within_s=within_s)

    def remove(self, template: str) -> None:
        """The template with its pools and their sessions, and all they have made."""
        with self.api() as api:
            for session in api.sessions.list():
                if session.state != "ended" and session.template == template:
                    api.sessions.end(session.id)
            for pool in api.pools.list():
                if pool.template == template:
                    api.pools.delete(pool.name)

            def gone() -> bool:
                with contextlib.suppress(NotFoundException):
                    api.templates.delete(template)
                return True

            until(f"{template} is removed", gone)

    def redis(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.folder / "run" / "valkey.sock"), protocol=2)

    # -- what its host sees

    def traces(self) -> dict[str, set[str]]:
        """Sandbox id → what there is of it on the host: folder, mount, loop device, control group, process."""
        found: dict[str, set[str]] = {}

        def add(sandbox: str, what: str) -> None:
            found.setdefault(sandbox, set()).add(what)

        sandboxes = self.folder / "local" / "sandboxes"
        for kind, place in (("folder", sandboxes), ("oci", self.folder / "local" / "oci")):
            if place.exists():
                for entry in place.iterdir():
                    add(entry.name.removeprefix(".gone-"), kind)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            path = line.split()[4]
            if path.startswith(f"{sandboxes}/"):
                add(Path(path).relative_to(sandboxes).parts[0].removeprefix(".gone-"), f"mount {path}")
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                path = backing.read_text().strip()
                if path.startswith(f"{sandboxes}/"):
                    add(Path(path).relative_to(sandboxes).parts[0].removeprefix(".gone-"), f"loop {path}")
        for group in [made for parent in self._cgroups() for made in parent.glob("*/")]:
            add(group.name, f"cgroup {group}")
        marker = f"/{CGROUP_PARENT}/{self.name}/"
        for membership in Path("/proc").glob("[0-9]*/cgroup"):
            with contextlib.suppress(OSError):
                text = membership.read_text()
                # One that has ended is there until its parent, the host's first process, looks for it.
                if marker in text and _state(membership.parent) != "Z":
                    add(text.partition(marker)[2].split()[0].partition("/")[0], f"process {membership.parent.name}")
        return found

    def recorded(self) -> set[str]:
        """Sandboxes that the store knows."""
        with self.api() as api:
            return {sandbox.id for sandbox in api.sandboxes.list()}


def _state(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


def _role(words: list[str]) -> str:
    if any(word.endswith("valkey-server") for word in words[:1]) or "valkey-server" in words[0]:
        return "valkey"
    if "agents.egress" in words:
        return "egress"
    named = words[words.index("controlplane.cli") + 1] if "controlplane.cli" in words else "starting"
    if named == "worker":
        return "builder" if "build" in words else "worker"
    return "api" if named == "serve" else named


@contextlib.contextmanager
def state_folder() -> Iterator[Path]:
    """Short, since it holds sockets, and passable for the root of a sandbox."""
    made = Path("/tmp") / f"wpe-{os.getpid()}-{time.monotonic_ns() % 10**8:x}"
    made.mkdir(mode=0o711)
    made.chmod(0o711)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def live(name: str, folder: Path, **how: Any) -> Iterator[Live]:
    """A deployment for the length of a block."""
    made = Live(name=name, folder=folder, **how)
    try:
        yield made.up()
    finally:
        made.stop()
        if made.traces():
            made.down()


def connected(deployment: Live, session: str) -> Sandbox:
    """The session, over a new connection."""
    return Sandbox.connect(session, api_url=deployment.url, api_key=deployment.api_key)


def machine_of(sandbox: Sandbox) -> str:
    """The id of the sandbox that a session holds (the client's ``sandbox_id`` is the session's)."""
    found = sandbox.get_info().sandbox
    assert found is not None
    return found
