"""The whole way on real sandboxes: a repository is built through the gateway, sealed, started again, and used."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agents.wire import ExecStart
from controlplane.agentclient.port import Door
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.ids import BuildId, PoolKey
from controlplane.model.resources import MIB, Resources
from controlplane.model.template import Build, Repository, SetupStep
from controlplane.runtime.local.runtime import LocalRuntime
from controlplane.store.redis_store import RedisStore
from tests.egress.process import GatewayProcess
from tests.gitserver.loading import GitServer, make_repository
from tests.provisioning.plant import SECRET, Plant
from tests.runtime.stage import CGROUP_PARENT, Setting, open_runtime, short_folder

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
SIZE = Resources(memory_bytes=256 * MIB, cpu_cores=1.0, pids=128)


@dataclass
class Ground:
    """``commit``: the repository's only one; ``url``: where it is served."""

    plant: Plant
    url: str
    commit: str


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One for all tests: the base is unpacked once."""
    with short_folder() as made:
        yield made


@pytest.fixture
async def ground(store: RedisStore, deployment: str, folder: Path, tmp_path: Path) -> AsyncIterator[Ground]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    commit = make_repository(tmp_path / "served" / "demo")
    with GitServer(tmp_path / "served") as server:
        runtime = open_runtime(Setting(kind="local", state_dir=folder, deployment=deployment))
        capabilities = await runtime.capabilities()
        if not capabilities.usable:
            pytest.skip(capabilities.reason)
        agents = UnixAgentClient(SECRET)
        # A socket's path is short; pytest's folders are not.
        sockets = folder / f"egress-{deployment}"
        sockets.mkdir()
        async with GatewayProcess(sockets) as gateway:
            plant = Plant(
                store,
                deployment,
                tmp_path,
                runtime=runtime,  # type: ignore[arg-type]
                agents=agents,
                egress=gateway.client,
            )
            try:
                yield Ground(plant=plant, url=f"{server.url}/demo", commit=commit)
            finally:
                await clear(runtime)  # type: ignore[arg-type]
                await agents.close()
                await runtime.close()
                remove_control_groups(deployment)


def remove_control_groups(deployment: str) -> None:
    """What the runtime keeps for the next sandbox of a deployment."""
    for group in Path("/sys/fs/cgroup").glob(f"*/{CGROUP_PARENT}/{deployment}"):
        with contextlib.suppress(OSError):
            group.rmdir()


async def clear(runtime: LocalRuntime) -> None:
    for found in await runtime.list_sandboxes():
        await runtime.destroy(found.id)
    for image in await runtime.list_images():
        if image.parent is not None:
            await runtime.delete_image(image.ref)


async def build(ground: Ground, *setup: str, ref: str = "main") -> Build:
    template = await ground.plant.add_template(
        repository=Repository(url=ground.url, ref=ref),
        by_operator=True,
        setup=tuple(SetupStep(run=run, timeout_s=60) for run in setup),
        resources=SIZE,
    )
    build_id: BuildId = await ground.plant.new_build(template)
    await ground.plant.builder.build(build_id)
    return await ground.plant.store.get_build(build_id)


async def output(plant: Plant, pool: PoolKey, script: str) -> str:
    session = await plant.attach(pool)
    assert session.state == "attached" and session.sandbox is not None and session.door is not None
    door = Door(session.sandbox, session.door)
    await plant.agents.exec_start(door, session.id, ExecStart(id="ask", script=script))
    text = ""
    async for event in plant.agents.exec_stream(door, session.id, "ask", 0):
        text += event.text or ""
    await plant.store.end_session(session.id, "deleted", "", "test")
    return text


async def test_a_repository_is_cloned_through_the_gateway_set_up_sealed_and_there_in_every_sandbox(
    ground: Ground,
) -> None:
    plant = ground.plant
    done = await build(ground, "cat README; pwd; id -un", "echo made > made-by-setup", 'echo "$HOME" >> made-by-setup')
    assert done.state == "succeeded", done.error
    assert done.commit == ground.commit
    log = (await plant.logs.read(done.id, "setup-1", 0, 10_000)).text
    assert log == "hello\n/workspace\nagent\n"
    assert await plant.running() == set()
    assert await plant.provisioning._egress.list_doors() == []  # type: ignore[union-attr]
    pool = await plant.add_pool(min_ready=1, resources=SIZE)
    await plant.settle()
    asked = "git rev-parse HEAD; git remote get-url origin; git status --short; cat made-by-setup"
    text = await output(plant, pool, asked)
    assert text.splitlines()[:2] == [ground.commit, ground.url]
    assert text.splitlines()[2:] == ["?? made-by-setup", "made", "/home/agent"]
    await plant.store.delete_pool(pool)
    await plant.settle()
    assert await plant.running() == set()


async def test_a_host_that_build_allow_does_not_name_is_refused_and_named(ground: Ground) -> None:
    done = await build(ground, "git ls-remote http://refused.example/x")
    assert (done.state, done.error_code) == ("failed", "setup_failed")
    assert "refused.example" in (done.error or "")
    assert "build_allow" in (done.error or "")
    assert await ground.plant.running() == set()


async def test_a_command_that_ignores_its_end_is_stopped_with_all_its_children(ground: Ground) -> None:
    plant = ground.plant
    template = await plant.add_template(
        setup=(SetupStep(run="trap '' TERM; (setsid sleep 600 &) ; sleep 600", timeout_s=0.5),), resources=SIZE
    )
    build_id = await plant.new_build(template)
    async with asyncio.timeout(120):
        await plant.builder.build(build_id)
    assert (await plant.store.get_build(build_id)).error_code == "setup_timeout"
    assert await plant.running() == set()


async def test_a_repository_that_is_not_there_is_a_clear_error(ground: Ground) -> None:
    missing = Ground(plant=ground.plant, url=ground.url + "-missing", commit="")
    done = await build(missing)
    assert (done.state, done.error_code) == ("failed", "repository_failed")
    assert await ground.plant.running() == set()
