"""The real sandboxd in a sandbox of the local runtime: what the runtime prepares is what the daemon needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agents.wire import ExecLimits, ExecStart, ExecStatus, sandbox_key
from controlplane.agentclient.port import Door
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.ids import new_sandbox_id
from controlplane.model.resources import GIB, MIB, Resources
from controlplane.runtime.agentbundle import ensure_agent_bundle
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.runtime import LocalOptions, LocalRuntime
from controlplane.runtime.port import SandboxSpec
from tests.engines import bases

pytestmark = pytest.mark.real

SECRET = os.urandom(32)


@pytest.fixture
async def runtime(state_dir: Path, base_ref: str) -> AsyncIterator[LocalRuntime]:
    async def agent() -> Path:
        return await ensure_agent_bundle(state_dir)

    runtime = LocalRuntime(
        LocalOptions(state_dir=state_dir, deployment=state_dir.name, ids=IdRange(start=200_000)),
        bases(),
        agent,
    )
    yield runtime
    for sandbox in await runtime.list_sandboxes():
        await runtime.destroy(sandbox.id)


@pytest.fixture
async def client() -> AsyncIterator[UnixAgentClient]:
    client = UnixAgentClient(SECRET)
    yield client
    await client.close()


async def start(runtime: LocalRuntime, base_ref: str, *, docker: bool = False) -> Door:
    sandbox = new_sandbox_id()
    spec = SandboxSpec(
        id=sandbox,
        image=base_ref,
        resources=Resources(memory_bytes=1 * GIB if docker else 256 * MIB, pids=256, cpu_cores=2),
        door_key_hex=sandbox_key(SECRET, sandbox).hex(),
        docker=docker,
    )
    made = await runtime.create(spec)
    assert made.door is not None
    return Door(sandbox, made.door)


async def until_closed(client: UnixAgentClient, door: Door, exec_id: str) -> ExecStatus:
    async with asyncio.timeout(60):
        async for event in client.exec_stream(door, None, exec_id, 0):
            if event.kind == "closed":
                assert event.status is not None
                return event.status
    raise AssertionError("the history ended without a closed event")


@pytest.mark.parametrize("docker", [False, True])
async def test_the_daemon_becomes_ready_and_runs_commands_in_groups_of_their_own(
    runtime: LocalRuntime, client: UnixAgentClient, base_ref: str, docker: bool
) -> None:
    door = await start(runtime, base_ref, docker=docker)
    hello = await asyncio.wait_for(_hello(client, door), 20)
    assert hello == door.sandbox
    ready = await client.ready(door, 30)
    assert ready.ready, ready.parts
    script = "id -u; pwd; " + ("docker info --format {{.Driver}}" if docker else "echo none")
    limits = ExecLimits(memory_bytes=64 * MIB, pids=32)
    await client.exec_start(door, None, ExecStart(id="one", script=script, limits=limits))
    status = await until_closed(client, door, "one")
    assert (status.code, status.reason) == (0, "exit")
    assert status.cgroup in ("v2", "v1+unified", "v1")
    events = (await client.exec_events(door, None, "one", 0, 0)).events
    assert "".join(event.text or "" for event in events if event.kind == "stdout").split() == [
        "1000",
        "/workspace",
        "overlay2" if docker else "none",
    ]


async def test_a_timeout_ends_a_whole_tree_of_processes(
    runtime: LocalRuntime, client: UnixAgentClient, base_ref: str
) -> None:
    door = await start(runtime, base_ref)
    await asyncio.wait_for(_hello(client, door), 20)
    tree = "for i in 1 2 3 4; do setsid sh -c 'sleep 300 & sleep 301' & done; wait"
    await client.exec_start(door, None, ExecStart(id="tree", script=tree, timeout_s=0.3, grace_s=0.1))
    status = await until_closed(client, door, "tree")
    assert (status.reason, status.survivors) == ("timeout", [])


async def _hello(client: UnixAgentClient, door: Door) -> str:
    return (await client.hello(door)).sandbox_id
