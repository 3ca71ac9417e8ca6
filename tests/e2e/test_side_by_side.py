"""Deployments share a host and a store without touching each other; schedulers stand in for each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.store.redis_store import RedisStore
from tests.e2e.live import Live, connected, live, state_folder, until

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture
def neighbour(shared: Live) -> Iterator[Live]:
    """A second deployment on the shared one's host and store. Its sandboxes outlive its ``stop``."""
    settings = {"WARMPOOL_STORE__REDIS_URL": f"unix://{shared.folder / 'run' / 'valkey.sock'}"}
    with state_folder() as folder:
        made = Live(name=f"two-{os.getpid()}", folder=folder, settings=settings, keep_sandboxes=True)
        try:
            yield made.up()
        finally:
            made.stop()
            made.down()


@pytest.mark.real
def test_two_deployments_on_one_host_and_one_store_leave_each_other_alone(shared: Live, neighbour: Live) -> None:
    for deployment in (shared, neighbour):
        deployment.declare("twin", min_ready=1, max_total=3)
    for deployment in (shared, neighbour):
        deployment.filled("twin", 1, within_s=180)
    with shared.api() as api, neighbour.api() as api2:
        held, held2 = api.attach("twin"), api2.attach("twin")
        assert (held.start, held2.start) == ("warm", "warm")
        assert held2.id not in {session.id for session in api.sessions.list()}
    nothing_is_shared(shared, neighbour, held2.id)
    before = shared.recorded()
    kept = neighbour.recorded()
    neighbour.stop()
    assert set(neighbour.traces()) == kept
    neighbour.down()
    assert neighbour.traces() == {}
    assert connected(shared, held.id).commands.run("echo alive").stdout == "alive\n"
    assert shared.recorded() == before == set(shared.traces())
    shared.remove("twin")


def nothing_is_shared(one: Live, other: Live, others_session: str) -> None:
    assert one.http("GET", f"/v1/sessions/{others_session}").status_code == 404
    assert one.http("GET", "/v1/whoami", headers={"Authorization": f"Bearer {other.api_key}"}).status_code == 401
    for deployment in (one, other):
        deployment.filled("twin", 1)
        assert set(deployment.traces()) == deployment.recorded()
    assert not one.recorded() & other.recorded()


# -- schedulers

LEASE_S = 2.0


@contextmanager
def second_scheduler(deployment: Live) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "controlplane.cli", "scheduler", "--state-dir", str(deployment.folder)]
    command += ["--deployment", deployment.name]
    log = (deployment.folder / "logs" / "second.log").open("wb")
    process = subprocess.Popen(command, env={**os.environ, **deployment.environment}, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.fixture
def simulated() -> Iterator[Live]:
    settings = {
        "WARMPOOL_RUNTIME__KIND": "simulated",
        "WARMPOOL_SCHEDULER__LEASE_S": str(LEASE_S),
        "WARMPOOL_SCHEDULER__TICK_S": "0.2",
    }
    with (
        state_folder() as folder,
        live(f"lead-{os.getpid()}", folder / "s", settings=settings) as deployment,
    ):
        yield deployment


async def test_another_scheduler_leads_once_the_lease_is_over_and_no_pool_is_ever_overfull(simulated: Live) -> None:
    ready, most, holding = 4, 6, 3
    store = RedisStore(f"unix://{simulated.folder / 'run' / 'valkey.sock'}", simulated.name)
    simulated.declare("lead", min_ready=ready, max_total=most)
    simulated.filled("lead", ready)
    crowd: list[int] = []
    with second_scheduler(simulated) as second, simulated.api() as api:
        until("the second stands by", lambda: "stands by" in simulated.log("second"))
        # The supervisor and a scheduler that it would start must not be quicker than the one that stands by.
        simulated.kill("supervisor", signal.SIGSTOP)
        try:
            (first,) = simulated.kill("scheduler")
            began = time.monotonic()
            held = [api.attach("lead") for _ in range(holding)]
            assert all(sandbox.start == "warm" for sandbox in held)
            while not (leader := await store.leader() or "").endswith(f"-{second.pid}"):
                assert leader == "" or leader.endswith(f"-{first}")
                crowd.append(len(await store.list_sandboxes(None)))
                assert time.monotonic() - began < LEASE_S * 2
            while api.pools.get("lead").counts.ready < most - holding:
                crowd.append(len(await store.list_sandboxes(None)))
                assert time.monotonic() - began < 30
        finally:
            simulated.kill("supervisor", signal.SIGCONT)
        until("the killed one is started again", lambda: simulated.kill("scheduler", 0))
        for sandbox in held:
            sandbox.kill()
        second.kill()
        while api.pools.get("lead").counts.ready != ready or api.pools.get("lead").counts.draining:
            crowd.append(len(await store.list_sandboxes(None)))
            assert time.monotonic() - began < 60
    await store.close()
    assert max(crowd) == most
