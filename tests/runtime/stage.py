"""One runtime on its stage: how a contract test makes, reaches and looks for sandboxes of it."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import docker

from agents.wire import ExecStart, ExecStatus, sandbox_key
from controlplane.agentclient.port import AgentClient, Door
from controlplane.agentclient.readiness import until_ready
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.ids import SandboxId, new_id, new_sandbox_id
from controlplane.model.resources import MIB, Resources
from controlplane.runtime.agentbundle import ensure_agent_bundle
from controlplane.runtime.docker import DockerOptions, DockerRuntime
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.runtime import LocalOptions, LocalRuntime
from controlplane.runtime.port import RunningSandbox, Runtime, SandboxSpec
from controlplane.runtime.simulated import SimulatedRuntime
from tests.engines import BASE, bases

SECRET = b"a secret of tests only, 32 bytes"
CGROUP_PARENT = "warmpool-test"
SMALL = Resources(memory_bytes=256 * MIB, cpu_cores=1.0, pids=128)
READY_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Which runtime, and where; enough for another process to come to the same one."""

    kind: str
    state_dir: Path
    deployment: str = "contract"
    docker_host: str | None = None
    start_s: float = 0.02


def open_runtime(setting: Setting) -> Runtime:
    """A runtime of ``setting``, as each process of a deployment has one."""

    async def agent() -> Path:
        return await ensure_agent_bundle(setting.state_dir)

    if setting.kind == "simulated":
        return SimulatedRuntime(setting.state_dir, setting.start_s, deployment=setting.deployment)
    if setting.kind == "local":
        local = LocalOptions(
            state_dir=setting.state_dir / setting.deployment,
            deployment=setting.deployment,
            ids=IdRange(start=200_000),
            cgroup_parent=CGROUP_PARENT,
        )
        return LocalRuntime(local, bases(), agent)
    options = DockerOptions(
        state_dir=setting.state_dir / setting.deployment,
        deployment=setting.deployment,
        base_url=setting.docker_host,
        cgroup_parent=CGROUP_PARENT,
    )
    return DockerRuntime(options, bases(), agent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """``out``: standard output and error together, in the order they came."""

    status: ExecStatus
    out: str


@dataclass(slots=True)
class Stage:
    setting: Setting
    runtime: Runtime
    agents: AgentClient
    base: str
    made: list[SandboxId] = field(default_factory=list)

    def spec(self, sandbox: SandboxId | None = None, **changes: object) -> SandboxSpec:
        chosen = sandbox or new_sandbox_id()
        self.made.append(chosen)
        spec = SandboxSpec(
            id=chosen,
            image=self.base,
            resources=SMALL,
            labels={"pool": "acme/demo", "version": "v1"},
            door_key_hex=sandbox_key(SECRET, chosen).hex(),
        )
        return replace(spec, **changes)  # type: ignore[arg-type]

    async def up(self, spec: SandboxSpec | None = None) -> RunningSandbox:
        """A sandbox whose daemon is ready."""
        running = await self.runtime.create(spec or self.spec())
        await until_ready(self.agents, door(running), READY_WITHIN_S, _nothing)
        return running

    async def run(self, sandbox: RunningSandbox, script: str, *, user: str = "agent", within_s: float = 60) -> Result:
        where = door(sandbox)
        start = ExecStart(id=new_id("ex"), script=script, user=user, timeout_s=within_s)  # type: ignore[arg-type]
        await self.agents.exec_start(where, None, start)
        text = ""
        async for event in self.agents.exec_stream(where, None, start.id, 0):
            text += event.text or ""
            if event.kind == "closed" and event.status is not None:
                return Result(status=event.status, out=text)
        raise AssertionError("the stream ended without closed")

    async def write(self, sandbox: RunningSandbox, path: str, text: str) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield text.encode()

        await self.agents.file_write(door(sandbox), None, path, chunks(), None)

    async def read(self, sandbox: RunningSandbox, path: str) -> str:
        return b"".join([chunk async for chunk in self.agents.file_read(door(sandbox), None, path)]).decode()

    async def traces(self, sandbox: SandboxId) -> list[str]:
        """Everything on this host that bears the sandbox's id."""
        return await asyncio.to_thread(lambda: list(_traces(self.setting, sandbox)))


def door(sandbox: RunningSandbox) -> Door:
    assert sandbox.door is not None, f"{sandbox.id} has no door: {sandbox.detail}"
    return Door(sandbox.id, sandbox.door)


@asynccontextmanager
async def stage_of(setting: Setting) -> AsyncIterator[Stage]:
    """Sandboxes and images that a test leaves are removed afterwards, also when the test failed."""
    runtime = open_runtime(setting)
    agents: AgentClient = runtime.agent() if isinstance(runtime, SimulatedRuntime) else UnixAgentClient(SECRET)
    base = await runtime.ensure_base(BASE, print)
    stage = Stage(setting, runtime, agents, base.ref)
    try:
        yield stage
    finally:
        await _clear(stage)


async def _clear(stage: Stage) -> None:
    runtime, agents = stage.runtime, stage.agents
    # By name first: a listing that fails must not leave machines running.
    for sandbox in stage.made:
        await runtime.destroy(sandbox)
    for each in await runtime.list_sandboxes():
        await runtime.destroy(each.id)
    while sealed := [image for image in await runtime.list_images() if image.parent is not None]:
        parents = {image.parent for image in sealed}
        for image in sealed:
            if image.ref not in parents:
                await runtime.delete_image(image.ref)
    await agents.close()
    await runtime.close()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose sockets have short paths, and through which the root of a sandbox may pass."""
    with tempfile.TemporaryDirectory(prefix="wp-", dir="/tmp") as folder:
        path = Path(folder)
        path.chmod(0o711)
        yield path


async def _nothing() -> None:
    return None


def _traces(setting: Setting, sandbox: SandboxId) -> Iterator[str]:
    yield from (f"file {path}" for path in setting.state_dir.rglob(f"*{sandbox}*"))
    if setting.kind == "simulated":
        return
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    yield from (f"mount {line}" for line in mounts if sandbox in line)
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-maxdepth", "5", "-name", sandbox], capture_output=True, text=True, check=False
    )
    yield from (f"cgroup {line}" for line in found.stdout.splitlines())
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if sandbox.encode() in words:
            yield f"process {path.parent.name}: {words!r}"
    if setting.kind == "docker":
        client = docker.APIClient(base_url=setting.docker_host)
        try:
            names = [name for each in client.containers(all=True) for name in each["Names"] or ()]
        finally:
            client.close()
        yield from (f"container {name}" for name in names if sandbox in name)
