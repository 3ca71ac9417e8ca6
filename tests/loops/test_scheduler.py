"""The scheduler over a real store: it leads, fills, replaces, takes over, and never overfills."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.errors import Conflict
from controlplane.ids import lineage_key
from controlplane.loops import Scheduler
from controlplane.model.actions import Limits
from controlplane.model.resources import MIB, Budget, Resources
from controlplane.model.template import SetupStep
from controlplane.pool import PoolService
from controlplane.store.redis_store import RedisStore
from tests.provisioning.plant import Plant, until


@contextlib.asynccontextmanager
async def running(*schedulers: Scheduler) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(scheduler.run(stop)) for scheduler in schedulers]
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks)


async def test_a_pool_is_built_filled_and_refilled_as_its_sandboxes_are_claimed(plant: Plant) -> None:
    await plant.add_template()
    pool = await plant.add_pool(min_ready=2, max_total=5)

    async def two_ready() -> bool:
        return len(await plant.sandboxes(pool, "ready")) == 2

    async with running(plant.scheduler):
        await until(two_ready)
        sessions = [await plant.attach(pool) for _ in range(2)]
        assert {session.start for session in sessions} == {"warm"}
        await until(two_ready)
        for session in sessions:
            await plant.store.end_session(session.id, "deleted", "", "test")

        async def only_ready_ones_left() -> bool:
            return await plant.running() == {sandbox.id for sandbox in await plant.sandboxes(pool, "ready")}

        await until(only_ready_ones_left)
    await plant.queue.close()
    assert plant.queue.errors == []


async def test_a_waiting_session_is_served_through_the_urgent_queue(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=0)
    result = await plant.claim(pool)
    await plant.settle()
    assert result.session is not None
    (sandbox,) = await plant.sandboxes(pool, "claimed")
    assert plant.queue.queues[f"provision-{sandbox.id}"] == "urgent"


async def test_two_schedulers_never_overfill_and_one_takes_over_from_the_other(plant: Plant) -> None:
    await plant.add_template()
    pool = await plant.add_pool(min_ready=3, max_total=3)
    most = 0

    async def full() -> bool:
        nonlocal most
        found = await plant.sandboxes(pool)
        most = max(most, len(found))
        return sum(1 for sandbox in found if sandbox.state == "ready") == 3

    first, second = plant.make_scheduler("a", lease_s=1.0), plant.make_scheduler("b", lease_s=1.0)
    async with running(second):
        async with running(first):
            await until(full)
        for sandbox in await plant.sandboxes(pool):
            await plant.runtime.destroy(sandbox.id)
        await plant.reality.compare()
        await until(full)
    await plant.queue.close()
    assert most == 3


async def test_a_leader_that_was_replaced_applies_nothing_any_more(plant: Plant) -> None:
    await plant.add_template()
    old = await plant.store.lead("one", 30.0)
    assert old is not None
    await plant.store.resign(old)
    assert await plant.store.lead("two", 30.0) is not None
    await plant.add_pool(min_ready=1)
    with pytest.raises(Conflict) as caught:
        await plant.scheduler.tick(old)
    assert caught.value.code == "fenced"
    assert await plant.store.list_builds(None, 10) == []


async def test_a_record_without_a_job_is_queued_again(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=0)
    await plant.claim(pool)
    plant.queue.held = True
    await plant.tick()
    (sandbox,) = await plant.sandboxes(pool, "building")
    plant.queue.held = False
    # Another process leads now; it knows nothing of what was put.
    plant.scheduler = plant.make_scheduler("one")
    await plant.tick()
    assert plant.queue.put_ids.count(f"provision-{sandbox.id}") == 2
    assert [s.id for s in await plant.sandboxes(pool, "claimed")] == [sandbox.id]


async def test_a_template_that_cannot_be_built_is_tried_a_few_times_and_then_left_with_one_reason(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path, limits=Limits(max_failures=3))
    template = await plant.add_template(setup=(SetupStep(run="echo no such package; exit 3"),))
    pool = await plant.add_pool(min_ready=1)
    waiting = await plant.claim(pool)
    await plant.settle()
    lineage = await store.get_lineage(lineage_key(template, None))
    assert lineage is not None and lineage.failures == 3
    assert len(await store.list_builds(template, 100)) == 3
    assert waiting.session is not None
    session = await store.get_session(waiting.session.id)
    assert (session.end_reason, session.start) == ("template_failed", "cold")
    assert "exit code 3" in (session.end_detail or "")
    explained = await PoolService(store).explain(pool)
    assert explained.decision is not None
    assert "no such package" in " ".join(explained.decision.reasons)
    await store.put_template(replace(await store.get_template(template), setup=(SetupStep(run="echo fixed"),)))
    await plant.settle()
    assert len(await plant.sandboxes(pool, "ready")) == 1


async def test_users_are_served_although_another_template_fails_for_ever(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path, limits=Limits(max_starts_in_flight=1))
    good = await plant.add_demo(min_ready=0)
    await plant.add_template("bad", setup=(SetupStep(run="false"),))
    await plant.add_pool("bad", min_ready=5)
    result = await plant.claim(good)
    await plant.settle()
    assert result.session is not None
    assert (await store.get_session(result.session.id)).state == "attached"


async def test_a_changed_template_replaces_the_pool_and_keeps_some_ready_all_the_time(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=4, max_total=5)
    old = {sandbox.id for sandbox in await plant.sandboxes(pool)}
    await plant.add_template("demo", env={"NEW": "1"})
    fewest = 4
    for _ in range(60):
        await plant.tick()
        fewest = min(fewest, len(await plant.sandboxes(pool, "ready")))
        found = {sandbox.id for sandbox in await plant.sandboxes(pool, "ready")}
        if len(found) == 4 and not found & old:
            break
    assert not old & {sandbox.id for sandbox in await plant.sandboxes(pool)}
    assert fewest >= 2


async def test_a_strict_template_never_hands_out_an_old_version(plant: Plant) -> None:
    await plant.add_template("demo", strict=True)
    pool = await plant.add_pool(min_ready=2)
    await plant.settle()
    old = await plant.current(pool)
    await plant.add_template("demo", strict=True, env={"NEW": "1"})
    result = await plant.claim(pool)
    assert result.outcome == "waiting"
    await plant.settle()
    assert result.session is not None
    session = await plant.store.get_session(result.session.id)
    assert session.state == "attached"
    assert session.version != old
    assert {sandbox.version for sandbox in await plant.sandboxes(pool)} == {session.version}


async def test_a_pool_made_again_under_its_name_gets_sandboxes_of_its_own(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    (earlier,) = await plant.sandboxes(pool)
    await plant.store.delete_pool(pool)
    await plant.settle()
    assert await plant.running() == set()
    await plant.add_pool(min_ready=1)
    await plant.settle()
    (later,) = await plant.sandboxes(pool, "ready")
    assert later.id != earlier.id and later.pool_uid != earlier.pool_uid


async def test_under_a_full_budget_the_least_recently_used_pool_gives_way_to_a_waiting_session(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    budget = Budget(memory_bytes=300 * MIB)
    plant = Plant(store, deployment, tmp_path, limits=Limits(budget=budget))
    size = Resources(memory_bytes=100 * MIB)
    stale = await plant.add_demo("stale", min_ready=2, resources=size)
    used = await plant.add_demo("used", min_ready=1, resources=size)
    session = await plant.attach(used)
    other = await plant.add_demo("other", min_ready=0, resources=size)
    result = await plant.claim(other)
    await plant.settle()
    assert result.session is not None
    assert (await store.get_session(result.session.id)).state == "attached"
    assert (await store.get_session(session.id)).state == "attached"
    # The pool in use refills its minimum too, so the stale one loses both; nothing else changes hands.
    assert await plant.sandboxes(stale) == []
    assert sorted(sandbox.state for sandbox in await plant.sandboxes(used)) == ["claimed", "ready"]
    assert len(await plant.running()) == 3


async def test_a_burst_of_claims_and_ends_never_starts_more_than_the_limit_at_once(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    limits = Limits(max_starts_in_flight=3, max_retires_in_flight=2)
    plant = Plant(store, deployment, tmp_path, limits=limits)
    pool = await plant.add_demo(min_ready=10, max_total=20)
    most = 0
    for _ in range(3):
        sessions = [await plant.attach(pool) for _ in range(8)]
        plant.queue.held = True
        for _ in range(4):
            await plant.scheduler.tick(await plant.leadership())
            most = max(most, len(await plant.sandboxes(pool, "building")))
        plant.queue.held = False
        plant.scheduler = plant.make_scheduler("one")
        for session in sessions:
            await plant.store.end_session(session.id, "deleted", "", "test")
        await plant.settle()
    assert most == 3
    assert len(await plant.sandboxes(pool, "ready")) == 10


async def test_a_decision_is_kept_and_readable_and_written_only_when_it_changes(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=2)
    service = PoolService(plant.store)
    first = await service.explain(pool)
    assert first.decision is not None
    assert (first.decision.target_ready, first.decision.ready, first.decision.bound_by) == (2, 2, "min_ready")
    await plant.settle()
    assert (await service.explain(pool)).at == first.at
    await service.pin(pool, 1)
    await plant.settle()
    pinned = await service.explain(pool)
    assert pinned.decision is not None and pinned.at != first.at
    assert (pinned.decision.ready, pinned.decision.bound_by) == (1, "pinned")
