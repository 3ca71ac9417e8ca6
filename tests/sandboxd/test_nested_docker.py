"""The engine inside a real sandbox: up before ready, started once more when it dies, its failure told."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agents.wire import ExecStart, ExecStatus, Ready, sandbox_key
from controlplane.agentclient.port import Door
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.ids import new_sandbox_id
from controlplane.model.resources import GIB, Resources
from controlplane.runtime.agentbundle import ensure_agent_bundle
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.runtime import LocalOptions, LocalRuntime
from controlplane.runtime.port import SandboxSpec
from tests.engines import BASE, bases

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
SECRET = os.urandom(32)

SMALL_IMAGE = """
programs="/bin/bash /bin/cat /bin/sleep"
mkdir -p root && cp --parents -L $programs $(ldd $programs | grep -o '/lib[^ ]*' | sort -u) root
tar -C root -c . | docker import - small >/dev/null && rm -r root
"""


class Inside:
    """A sandbox with an engine, and what can be asked of its daemon."""

    def __init__(self, client: UnixAgentClient, door: Door) -> None:
        self.client = client
        self.door = door
        self._count = 0

    async def run(self, script: str, *, root: bool = False) -> tuple[ExecStatus, str]:
        """Status and what was printed on both streams."""
        self._count += 1
        name = f"c{self._count}"
        spec = ExecStart(id=name, script=script, user="root" if root else "agent", timeout_s=120)
        await self.client.exec_start(self.door, None, spec)
        text = ""
        async for event in self.client.exec_stream(self.door, None, name, 0):
            text += event.text or ""
            if event.kind == "closed":
                assert event.status is not None
                return event.status, text
        raise AssertionError(f"no end of {name}: {text}")

    async def until_docker(self, *beginnings: str) -> Ready:
        """Readiness once the state of the part ``docker`` begins with one of these."""
        deadline = time.monotonic() + 60
        while True:
            ready = await self.client.ready(self.door, 0)
            if ready.parts["docker"].startswith(beginnings):
                return ready
            assert time.monotonic() < deadline, ready
            await asyncio.sleep(0.05)


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    state = Path(tempfile.mkdtemp(prefix="wp-", dir="/tmp"))
    state.chmod(0o711)
    options = LocalOptions(state_dir=state, deployment=state.name, ids=IdRange(start=200_000))
    runtime = LocalRuntime(options, bases(), lambda: ensure_agent_bundle(state))
    image = await runtime.ensure_base(BASE, print)
    sandbox = new_sandbox_id()
    spec = SandboxSpec(
        id=sandbox,
        image=image.ref,
        resources=Resources(memory_bytes=GIB, pids=512, cpu_cores=2),
        door_key_hex=sandbox_key(SECRET, sandbox).hex(),
        docker=True,
    )
    client = UnixAgentClient(SECRET)
    try:
        made = await runtime.create(spec)
        assert made.door is not None
        yield Inside(client, Door(sandbox, made.door))
    finally:
        await client.close()
        await runtime.destroy(sandbox)
        shutil.rmtree(state)


async def test_the_engine_serves_the_sandboxs_user_with_its_default_network(inside: Inside) -> None:
    ready = await inside.until_docker("ready", "failed")
    assert ready.ready, ready.parts
    status, text = await inside.run(SMALL_IMAGE)
    assert status.code == 0, text
    limits = "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"
    status, text = await inside.run(f"docker run --rm -m 32m --pids-limit 20 small cat {limits} 2>/dev/null")
    assert text.split() == [str(32 * 1024 * 1024)]
    status, text = await inside.run("docker network inspect bridge --format '{{.Driver}}'")
    assert (status.code, text) == (0, "bridge\n")
    status, text = await inside.run("docker run --rm small cat /proc/net/dev")
    assert "eth0" in text


async def test_an_engine_that_dies_is_started_once_more_and_then_told_as_failed(inside: Inside) -> None:
    await inside.until_docker("ready")
    kill = "kill -9 $(cat /var/run/docker.pid)"
    assert (await inside.run(kill, root=True))[0].code == 0
    await inside.until_docker("starting")
    assert (await inside.until_docker("ready")).ready
    assert (await inside.run("docker info"))[0].code == 0
    assert (await inside.run(kill, root=True))[0].code == 0
    ready = await inside.until_docker("failed")
    assert not ready.ready
    assert "dockerd ended" in ready.parts["docker"]
    assert "level=info" in ready.parts["docker"], "its last log lines"
    assert (await inside.run("echo alive"))[1] == "alive\n"
