"""From a record to a ready sandbox and to gone: real store, simulated sandboxes, deaths between any two steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.errors import Permanent, Retryable
from controlplane.ids import SandboxId, lineage_key
from controlplane.runtime.simulated import Fault, FaultPlan, SimulatedRuntime
from controlplane.store.redis_store import RedisStore
from tests.provisioning.plant import Crash, Crashes, Plant


async def test_a_recorded_sandbox_becomes_ready_with_the_labels_that_rebuild_its_record(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    (sandbox,) = await plant.sandboxes(pool, "ready")
    running = await plant.runtime.inspect(sandbox.id)
    assert running is not None and running.state == "running"
    assert running.labels["pool"] == pool
    assert running.labels["pool_uid"] == sandbox.pool_uid
    assert running.labels["version"] == sandbox.version == await plant.current(pool)
    assert sandbox.door == running.door
    assert sandbox.expires_at == pytest.approx(sandbox.ready_at + 86_400, abs=1)  # type: ignore[operator]


async def test_a_waiting_session_gets_the_sandbox_as_it_becomes_ready_and_is_bound(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=0)
    result = await plant.claim(pool, env={"NAME": "value"}, labels={"run": "7"})
    assert result.outcome == "waiting" and result.session is not None
    await plant.settle()
    session = await plant.store.get_session(result.session.id)
    assert (session.state, session.start) == ("attached", "cold")
    (sandbox,) = await plant.sandboxes(pool, "claimed")
    claim = plant.runtime.world.claim(sandbox.id)
    assert claim is not None
    assert (claim.claim_id, claim.env, claim.labels) == (session.id, {"NAME": "value"}, {"run": "7"})


async def test_running_a_job_again_changes_nothing(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    before = await plant.sandboxes(pool)
    await plant.provisioning.provision(before[0].id)
    await plant.provisioning.retire(before[0].id)
    assert await plant.sandboxes(pool) == before
    assert await plant.running() == {before[0].id}
    await plant.provisioning.provision(SandboxId("sb-unknown"))
    await plant.provisioning.retire(SandboxId("sb-unknown"))


async def test_a_passing_failure_of_the_runtime_is_retried_within_the_step(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    busy = Fault(error=lambda: Retryable("engine_busy", "The engine is busy."))
    runtime = SimulatedRuntime(start_s=0.0, deployment=deployment, faults=FaultPlan({"create": [None, busy, busy]}))
    plant = Plant(store, deployment, tmp_path, runtime=runtime)
    pool = await plant.add_demo(min_ready=1)
    assert len(await plant.sandboxes(pool, "ready")) == 1
    lineage = await store.get_lineage(lineage_key((await store.get_pool(pool)).template, None))
    assert lineage is not None and lineage.provision_failures == 0


async def test_a_sandbox_that_cannot_be_made_fails_with_the_reason_and_counts_against_its_lineage(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    refused = Fault(error=lambda: Permanent("limit_not_held", "The disk limit can't be held.", hint="Leave it out."))
    faults = FaultPlan({"create": [None, *[refused] * 50]})
    runtime = SimulatedRuntime(start_s=0.0, deployment=deployment, faults=faults)
    plant = Plant(store, deployment, tmp_path, runtime=runtime)
    template = await plant.add_template()
    pool = await plant.add_pool(min_ready=1)
    waiting = await plant.claim(pool)
    await plant.settle()
    lineage = await store.get_lineage(lineage_key(template, None))
    assert lineage is not None
    assert lineage.provision_failures == 5
    assert "disk limit" in (lineage.last_error or "")
    assert await plant.running() == set()
    assert waiting.session is not None
    session = await store.get_session(waiting.session.id)
    assert (session.state, session.end_reason) == ("ended", "template_failed")
    assert "disk limit" in (session.end_detail or "")


async def test_a_sandbox_that_dies_while_starting_is_not_waited_for(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path)
    pool = await plant.add_demo(min_ready=0)
    plant.queue.held = True
    await store.put_pool(replace(await store.get_pool(pool), min_ready=1))
    await plant.tick()
    (record,) = await plant.sandboxes(pool, "building")
    slow = SimulatedRuntime(start_s=60.0, sigma=0.0, deployment=deployment, world=plant.runtime.world)

    class DiesAfterCreate:
        """Its sandboxes stop as soon as they were made."""

        def __getattr__(self, name: str) -> object:
            return getattr(slow, name)

        async def create(self, spec: object) -> object:
            made = await plant.runtime.create(spec)  # type: ignore[arg-type]
            plant.runtime.kill(record.id)
            return made

    plant.provisioning._runtime = DiesAfterCreate()  # type: ignore[assignment]
    await plant.provisioning.provision(record.id)
    (failed,) = await plant.sandboxes(pool, "failed")
    assert "stopped before it was ready" in failed.reason


async def test_a_sandbox_retired_while_it_was_made_leaves_nothing_behind(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=0)
    plant.queue.held = True
    await plant.store.put_pool(replace(await plant.store.get_pool(pool), min_ready=1))
    await plant.tick()
    (record,) = await plant.sandboxes(pool, "building")
    create = plant.runtime.create

    async def retired_meanwhile(spec: object) -> object:
        await plant.store.drain_sandbox(record.id, "no longer wanted", "test", None, True)
        await plant.provisioning.retire(record.id)
        assert await plant.store.find_sandbox(record.id) is None
        return await create(spec)  # type: ignore[arg-type]

    plant.runtime.create = retired_meanwhile  # type: ignore[method-assign,assignment]
    plant.provisioning._runtime = plant.runtime
    await plant.provisioning.provision(record.id)
    assert await plant.running() == set()
    assert await plant.sandboxes(pool) == []


async def test_a_lost_image_is_built_again(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    version = await plant.store.get_version(await plant.current(pool))
    for sandbox in await plant.sandboxes(pool):
        plant.runtime.world.remove_sandbox(sandbox.id)
    plant.runtime.world.remove_image(version.image)
    await plant.reality.compare()
    await plant.settle()
    assert len(await plant.sandboxes(pool, "ready")) == 1
    assert version.image in {image.ref for image in await plant.runtime.list_images()}


async def test_a_dead_sandbox_is_found_by_the_bind_replaced_and_the_session_gets_the_next(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=2)
    newest = max(await plant.sandboxes(pool), key=lambda sandbox: (sandbox.ready_at or 0, sandbox.id))
    result = await plant.claim(pool)
    assert result.session is not None and result.session.sandbox is not None
    plant.runtime.kill(result.session.sandbox)
    session = await plant.binder.bind(result.session)
    assert session.state == "attached"
    assert session.sandbox != result.session.sandbox
    assert newest.pool == pool
    await plant.settle()
    assert result.session.sandbox not in await plant.running()
    assert len(await plant.sandboxes(pool, "ready")) == 2


async def test_when_every_candidate_is_dead_the_session_waits_and_is_served_cold(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=2)
    for sandbox in await plant.sandboxes(pool):
        plant.runtime.kill(sandbox.id)
    session = await plant.attach(pool)
    assert (session.state, session.start_reason) == ("waiting", "bind_failed")
    await plant.settle()
    assert (await plant.store.get_session(session.id)).state == "attached"


async def test_twenty_requests_on_a_pool_of_three_get_three_warm_and_seventeen_cold_starts(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=3, max_total=30)
    sessions = [await plant.attach(pool) for _ in range(20)]
    assert sum(1 for session in sessions if session.state == "attached") == 3
    await plant.settle()
    ended = [await plant.store.get_session(session.id) for session in sessions]
    assert {session.state for session in ended} == {"attached"}
    assert sorted(session.start or "" for session in ended) == ["cold"] * 17 + ["warm"] * 3
    assert len({session.sandbox for session in ended}) == 20


Job = Callable[[Plant, SandboxId], Awaitable[None]]


async def _provision(plant: Plant, sandbox: SandboxId) -> None:
    await plant.provisioning.provision(sandbox)


async def _retire(plant: Plant, sandbox: SandboxId) -> None:
    await plant.provisioning.retire(sandbox)


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("waits", [False, True], ids=["refill", "a session waits"])
async def test_a_worker_that_dies_at_any_step_of_a_start_is_followed_by_one_that_ends_it(
    store: RedisStore, deployment: str, tmp_path: Path, after: bool, waits: bool
) -> None:
    calm = Plant(store, deployment, tmp_path)
    pool = await calm.add_demo(min_ready=0, max_total=1)
    for step in range(1, 40):
        crashes = Crashes(step, after=after)
        plant = Plant(store, deployment, tmp_path, runtime=calm.runtime, crashes=crashes)
        plant.queue.held = True
        result = await plant.claim(pool) if waits else None
        await store.put_pool(replace(await store.get_pool(pool), min_ready=0 if waits else 1))
        await plant.tick()
        (record,) = await plant.sandboxes(pool, "building")
        died = await _dies(lambda plant=plant, record=record: plant.provisioning.provision(record.id))  # type: ignore[misc]
        crashes.at = None
        await plant.provisioning.provision(record.id)
        (sandbox,) = await plant.sandboxes(pool)
        assert sandbox.state == ("claimed" if waits else "ready"), f"after a death at call {step}"
        assert await plant.running() == {sandbox.id}
        if result is not None and result.session is not None:
            session = await store.get_session(result.session.id)
            assert (session.state, session.sandbox) == ("attached", sandbox.id)
            await store.end_session(session.id, "deleted", "", "test")
        else:
            await store.drain_sandbox(sandbox.id, "test", "test", None, True)
        await plant.provisioning.retire(sandbox.id)
        assert await plant.running() == set()
        if not died:
            assert step > 8
            return
    raise AssertionError("a start has more steps than expected")


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
async def test_a_worker_that_dies_at_any_step_of_a_retirement_is_followed_by_one_that_ends_it(
    store: RedisStore, deployment: str, tmp_path: Path, after: bool
) -> None:
    calm = Plant(store, deployment, tmp_path)
    pool = await calm.add_demo(min_ready=1, max_total=1)
    for step in range(1, 20):
        crashes = Crashes(step, after=after)
        await calm.settle()
        plant = Plant(store, deployment, tmp_path, runtime=calm.runtime, crashes=crashes)
        (sandbox,) = await calm.sandboxes(pool, "ready")
        await store.drain_sandbox(sandbox.id, "test", "test", None, True)
        died = await _dies(lambda plant=plant, sandbox=sandbox: plant.provisioning.retire(sandbox.id))  # type: ignore[misc]
        crashes.at = None
        await plant.provisioning.retire(sandbox.id)
        assert await store.find_sandbox(sandbox.id) is None
        assert await plant.running() == set()
        if not died:
            assert step > 3
            return
    raise AssertionError("a retirement has more steps than expected")


async def _dies(work: Callable[[], Awaitable[None]]) -> bool:
    try:
        await work()
    except Crash:
        return True
    return False
