"""``warmpool up``: everything on one machine.

Order of start: Valkey, first tenant and key, egress, scheduler, workers, API. Order of stop: the reverse.
A second ``up`` of the same state folder is refused. Killed with -9, it takes its roles with it; sandboxes live
on, and the next ``up`` finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from controlplane import configuration
from controlplane.bootstrap import operator
from controlplane.bootstrap.clearing import destroy_everything
from controlplane.errors import Conflict, Permanent
from controlplane.settings import Settings
from controlplane.supervisor.process import Child, Role, tail
from controlplane.supervisor.valkey import valkey_role

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A deployment that answers: its address and the key that ``up`` made for its operator."""

    url: str
    api_key: str
    children: tuple[Child, ...]


@contextlib.asynccontextmanager
async def running(settings: Settings, *, say: Say, keep_sandboxes: bool) -> AsyncIterator[Running]:
    """Start all roles, give the running deployment, stop all of them.

    Conflict ``already_up`` if one runs on this state folder; Permanent ``start_failed`` with the log's end."""
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
    with _lock(settings.state_dir / "up.lock"):
        children: list[Child] = []
        try:
            if settings.store.redis_url is None:
                say("starting the embedded Valkey")
                await _start(children, valkey_role(settings.state_dir, settings.valkey_socket))
            await operator.wait_for_store(settings, timeout_s=60)
            credentials = await operator.ensure_operator(settings)
            port_file = settings.state_dir / "run" / "api.json"
            port_file.unlink(missing_ok=True)
            say("starting egress, scheduler, workers and API")
            for role in _roles(settings):
                await _start(children, role)
            url = await _answering(settings, port_file, children)
            _keep_port(children[-1], url)
            configuration.write_credentials(settings, url=url, api_key=credentials.api_key)
            yield Running(url=url, api_key=credentials.api_key, children=tuple(children))
        finally:
            await _stop(settings, children, say=say, keep_sandboxes=keep_sandboxes)


async def up(settings: Settings, *, say: Say, keep_sandboxes: bool) -> None:
    """Run until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    starting = asyncio.create_task(_until(stop, settings, say, keep_sandboxes))
    await starting


async def _until(stop: asyncio.Event, settings: Settings, say: Say, keep_sandboxes: bool) -> None:
    async with running(settings, say=say, keep_sandboxes=keep_sandboxes) as deployment:
        say(f"Warmpool answers at {deployment.url}  (credentials: {configuration.credentials_file(settings)})")
        say("Ctrl-C stops it." if sys.stdin.isatty() else "SIGTERM stops it.")
        await stop.wait()
        say("stopping")


def _roles(settings: Settings) -> list[Role]:
    env = {**os.environ, **configuration.settings_environment(settings), "PYTHONUNBUFFERED": "1"}
    logs = settings.state_dir / "logs"

    def role(name: str, *arguments: str, stop_s: float = 10.0, nice: int = 0) -> Role:
        argv = [sys.executable, "-m", "controlplane.cli", *arguments]
        return Role(name=name, argv=argv, env=env, log=logs / f"{name}.log", stop_s=stop_s, nice=nice)

    workers = [
        role(f"worker-{n}", "worker", "--queues", "urgent,retire,refill", stop_s=20, nice=5)
        for n in range(1, settings.worker.processes + 1)
    ]
    builders = [
        role(f"builder-{n}", "worker", "--queues", "build", stop_s=5, nice=10)
        for n in range(1, settings.worker.build_processes + 1)
    ]
    return [role("egress", "egress"), role("scheduler", "scheduler"), *workers, *builders, role("api", "serve")]


async def _start(children: list[Child], role: Role) -> None:
    child = Child(role)
    await child.start()
    children.append(child)


async def _answering(settings: Settings, port_file: Path, children: Sequence[Child]) -> str:
    """The API's address once /readyz says yes. Given up early when a role ends again and again."""
    deadline = asyncio.get_running_loop().time() + 60
    last = "the API has not started"
    failing: Child | None = None
    async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
        while failing is None and asyncio.get_running_loop().time() < deadline:
            url = operator.read_api_address(port_file)
            if url:
                try:
                    answer = await client.get(f"{url}/readyz")
                    if answer.status_code == 200:
                        return url
                    last = answer.text
                except httpx.HTTPError as error:
                    last = repr(error)
            failing = next((child for child in children if child.restarts >= 3), None)
            await asyncio.sleep(0.05)
    told = f"its {failing.role.name} ends at once:\n{_last_error(failing)}" if failing is not None else last
    raise Permanent(
        "start_failed",
        f"Warmpool did not become ready: {told}",
        hint=f"Logs of all roles are in {settings.state_dir / 'logs'}; `warmpool doctor` checks the machine.",
    )


def _last_error(failing: Child) -> str:
    """What its log ends with, once: each of its starts has written the same."""
    text = tail(failing.role.log)
    return text[max(0, text.rfind("error: ")) :]


def _keep_port(api: Child, url: str) -> None:
    """A free port was taken: an API that is started again must be found where its clients look for it."""
    api.role = replace(api.role, env={**api.role.env, "WARMPOOL_API__PORT": str(urlsplit(url).port)})


async def _stop(settings: Settings, children: list[Child], *, say: Say, keep_sandboxes: bool) -> None:
    valkey = [child for child in children if child.role.name == "valkey"]
    others = [child for child in children if child.role.name != "valkey"]
    await asyncio.gather(*(child.stop() for child in others))
    if others and not keep_sandboxes:
        count = await destroy_everything(settings)
        say(f"removed {count} sandboxes")
    for child in valkey:
        await child.stop()


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "already_up",
                f"Warmpool already runs on {path.parent}.",
                hint="Use another --state-dir and deployment name, or stop it first.",
            ) from None
        yield
