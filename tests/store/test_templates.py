"""Templates, pools, lineages, versions and builds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controlplane.errors import Conflict, NotFound, Permanent
from controlplane.ids import BuildId, PoolKey, VersionId, lineage_key, new_build_id, pool_key, template_key
from controlplane.model.resources import Resources
from controlplane.model.template import Build, BuildStep, Pool, Repository, SetupStep
from controlplane.store.redis_store import RedisStore, StoreOptions
from tests.store.world import ACME, DEMO, LINEAGE, POOL, V1, V2, World, new_world

# -- templates


async def test_a_template_is_read_as_it_was_put(world: World) -> None:
    put = await world.put_template(
        repository=Repository(url="https://h/r.git", ref="main"),
        setup=(SetupStep(run="pip install -e .", timeout_s=30.0), SetupStep(run="make")),
        env={"A": "1"},
        resources=Resources(disk_bytes=10**9),
        build_allow=("index.example",),
        shared_with=("*",),
        session_ttl_s=99.5,
    )
    assert await world.store.get_template(DEMO) == put
    assert put.setup[0].run == "pip install -e ."
    assert await world.store.list_templates() == [put]


@pytest.mark.parametrize(
    "change",
    [
        {"base": "other"},
        {"repository": Repository(url="https://h/r.git")},
        {"setup": (SetupStep(run="make"),)},
        {"env": {"A": "1"}},
        {"resources": Resources(pids=9)},
        {"docker": True},
        {"build_allow": ("index.example",)},
        {"trusted": True},
    ],
)
async def test_a_change_that_a_build_reads_raises_the_revision_and_resets_back_off(
    world: World, change: dict[str, object]
) -> None:
    await world.store.note_provision(LINEAGE, False, "boom", 100.0)
    before = await world.store.get_template(DEMO)
    after = await world.put_template(**change)
    assert (before.revision, after.revision) == (1, 2)
    assert after.created_at == before.created_at <= after.updated_at
    lineage = await world.store.get_lineage(LINEAGE)
    assert lineage is not None
    assert (lineage.provision_failures, lineage.next_attempt_at, lineage.last_error) == (0, 0.0, None)
    assert (await world.store.observe()).revisions[LINEAGE] == 2


async def test_other_changes_keep_the_revision_and_the_back_off(world: World) -> None:
    await world.store.note_provision(LINEAGE, False, "boom", 100.0)
    after = await world.put_template(session_ttl_s=1.0, strict=True, shared_with=("x",), max_age_s=5.0)
    assert after.revision == 1
    assert (await world.store.observe()).strict == {LINEAGE}
    lineage = await world.store.get_lineage(LINEAGE)
    assert lineage is not None and lineage.provision_failures == 1


async def test_a_template_in_use_cannot_be_deleted(world: World) -> None:
    with pytest.raises(Conflict) as caught:
        await world.store.delete_template(DEMO)
    assert caught.value.code == "template_in_use"
    assert POOL in caught.value.message


async def test_a_deleted_template_leaves_nothing_that_a_new_one_of_its_name_could_adopt(world: World) -> None:
    # Case 20.
    await world.store.delete_pool(POOL)
    assert await world.store.remove_pool(POOL, world.fence)
    await world.store.delete_template(DEMO)
    await world.store.delete_template(DEMO)
    with pytest.raises(NotFound):
        await world.store.get_template(DEMO)
    assert (await world.store.get_version(V1)).superseded_at is not None
    await world.put_template()
    await world.put_pool()
    assert await world.store.get_lineage(LINEAGE) is None
    session = (await world.claim()).session
    assert session is not None and session.start_reason == "building"


# -- pools


async def test_a_pool_keeps_its_uid_and_pin_over_updates(world: World) -> None:
    first = await world.store.get_pool(POOL)
    pinned = await world.store.set_pool_pin(POOL, 7)
    assert pinned.pinned_ready == 7
    again = await world.put_pool(min_ready=3)
    assert (again.uid, again.created_at, again.pinned_ready, again.min_ready) == (first.uid, first.created_at, 7, 3)
    assert (await world.store.set_pool_pin(POOL, None)).pinned_ready is None


async def test_a_pool_of_a_missing_template_is_refused(world: World) -> None:
    with pytest.raises(NotFound) as caught:
        await world.put_pool("other", template=template_key(ACME, "none"))
    assert caught.value.code == "template_not_found"


@pytest.mark.parametrize("size", [{"min_ready": -1}, {"max_total": -1}, {"min_ready": 5, "max_total": 4}])
async def test_impossible_pool_sizes_are_refused(world: World, size: dict[str, int]) -> None:
    with pytest.raises(Permanent) as caught:
        await world.put_pool(**size)
    assert caught.value.code == "invalid_pool_size"


async def test_a_pool_cannot_be_pinned_below_zero_or_when_missing(world: World) -> None:
    with pytest.raises(Permanent):
        await world.store.set_pool_pin(POOL, -1)
    with pytest.raises(NotFound) as caught:
        await world.store.set_pool_pin(pool_key(ACME, "none"), 1)
    assert caught.value.code == "pool_not_found"


async def test_a_one_off_attach_does_not_resize_a_declared_pool(world: World) -> None:
    declared = await world.store.get_pool(POOL)
    assert await world.put_pool(adhoc=True, min_ready=0, max_total=1) == declared


async def test_deleting_a_pool_ends_who_waits_drains_what_is_unclaimed_and_leaves_the_rest(world: World) -> None:
    attached = await world.attached()
    ready = await world.ready()
    building = await world.sandbox()
    await world.publish(V2)
    waiting = (await world.claim(allow_superseded=False)).session
    assert waiting is not None and waiting.state == "waiting"
    await world.store.delete_pool(POOL)
    await world.store.delete_pool(POOL)
    ended = await world.store.get_session(waiting.id)
    assert (ended.state, ended.end_reason) == ("ended", "pool_deleted")
    assert await world.session_state(attached.id) == "attached"
    assert [await world.state(key) for key in (ready, building.id)] == ["draining", "draining"]
    with pytest.raises(Conflict) as caught:
        await world.put_pool()
    assert caught.value.code == "pool_deleting"


async def test_a_deleted_pool_is_removed_once_it_holds_nothing_and_comes_back_as_another(world: World) -> None:
    before = await world.store.get_pool(POOL)
    session = await world.attached()
    assert session.sandbox is not None
    assert not await world.store.remove_pool(POOL, world.fence), "not being deleted"
    await world.store.delete_pool(POOL)
    assert not await world.store.remove_pool(POOL, world.fence), "a session lives on"
    await world.store.end_session(session.id, "deleted", "", "k1")
    assert not await world.store.remove_pool(POOL, world.fence), "its sandbox drains"
    await world.store.sandbox_gone(session.sandbox)
    assert await world.store.remove_pool(POOL, world.fence)
    assert await world.store.remove_pool(POOL, world.fence)
    with pytest.raises(NotFound):
        await world.store.get_pool(POOL)
    await world.store.delete_pool(POOL)
    assert (await world.put_pool()).uid != before.uid


async def test_an_idle_one_off_pool_can_be_removed_but_not_while_somebody_waits(world: World) -> None:
    key = pool_key(ACME, "once")
    await world.put_pool("once", adhoc=True, min_ready=0)
    waiting = (await world.claim(pool=key)).session
    assert waiting is not None
    assert not await world.store.remove_pool(key, world.fence)
    await world.store.end_session(waiting.id, "deleted", "", "k1")
    assert await world.store.remove_pool(key, world.fence)
    assert [pool.key for pool in await world.store.list_pools()] == [POOL]


# -- builds and versions


async def test_one_build_of_a_lineage_lives_at_a_time(world: World) -> None:
    builds = [Build(id=new_build_id(), lineage=LINEAGE, template=DEMO, tenant=ACME, revision=1) for _ in range(10)]
    started = await asyncio.gather(*(world.store.create_build(b, world.fence) for b in builds))
    assert sum(started) == 1
    live = builds[started.index(True)]
    assert await world.store.create_build(live, world.fence), "the same call again"
    lineage = await world.store.get_lineage(LINEAGE)
    assert lineage is not None and lineage.build == live.id
    assert (await world.store.observe()).building_lineages == {LINEAGE}


async def test_a_builds_progress_is_kept_and_refreshes_its_heartbeat(world: World) -> None:
    build = await world.start_build()
    step = BuildStep(name="setup-1", command="make", timeout_s=5.0, state="running", started_at=1.5)
    await world.store.update_build(replace(build, steps=(step,), sandbox="sb-x"))
    read = await world.store.get_build(build.id)
    assert (read.state, read.steps, read.sandbox) == ("running", (step,), "sb-x")
    assert read.heartbeat_at is not None and read.heartbeat_at >= read.created_at > 0
    await world.store.update_build(replace(build, steps=()))
    assert (await world.store.get_build(build.id)).steps == ()


async def test_a_finished_build_publishes_its_version_and_supersedes_the_old(world: World) -> None:
    await world.store.note_provision(LINEAGE, False, "boom", 100.0)
    build = await world.start_build()
    await world.store.finish_build(build, world.version(build, V2), 0.0)
    lineage = await world.store.get_lineage(LINEAGE)
    assert lineage is not None
    assert (lineage.current, lineage.current_revision, lineage.build) == (V2, 1, None)
    assert (lineage.failures, lineage.provision_failures, lineage.next_attempt_at) == (0, 0, 0.0)
    assert (await world.store.get_version(V1)).superseded_at is not None
    assert (await world.store.get_version(V2)).superseded_at is None
    ended = await world.store.get_build(build.id)
    assert (ended.state, ended.version) == ("succeeded", V2)
    assert ended.ended_at is not None
    await world.store.finish_build(build, world.version(build, V2), 0.0)
    assert await world.store.find_version(VersionId("none")) is None
    assert {v.id for v in await world.store.list_versions()} == {V1, V2}


async def test_a_failed_build_counts_and_backs_off(world: World) -> None:
    # Case 9.
    for failures in (1, 2, 3):
        build = await world.start_build()
        failed = replace(build, error="exit 1", error_code="setup_failed")
        await world.store.finish_build(failed, None, 50.0)
        await world.store.finish_build(failed, None, 50.0)
        lineage = await world.store.get_lineage(LINEAGE)
        assert lineage is not None
        assert (lineage.failures, lineage.last_error, lineage.last_error_code) == (failures, "exit 1", "setup_failed")
        assert lineage.next_attempt_at == pytest.approx(await world.store.now() + 50.0, abs=30.0)
        assert lineage.current == V1, "what was built before is still handed out"
        assert lineage.build is None
    ended = await world.store.get_build(build.id)
    assert (ended.state, ended.error) == ("failed", "exit 1")


async def test_a_person_can_ask_to_try_again_now(world: World) -> None:
    build = await world.start_build()
    await world.store.finish_build(replace(build, error="x"), None, 500.0)
    await world.store.reset_lineage(LINEAGE, rebuild=False)
    lineage = await world.store.get_lineage(LINEAGE)
    assert lineage is not None
    assert (lineage.failures, lineage.next_attempt_at, lineage.last_error) == (0, 0.0, None)
    assert (lineage.current, lineage.current_revision) == (V1, 1)
    await world.store.reset_lineage(LINEAGE)
    lineage = await world.store.get_lineage(LINEAGE)
    assert lineage is not None and (lineage.current, lineage.current_revision) == (V1, 0)


async def test_a_ref_never_built_can_be_asked_for_if_its_template_exists(world: World) -> None:
    key = lineage_key(DEMO, "feature@2")
    await world.store.reset_lineage(key)
    lineage = await world.store.get_lineage(key)
    assert lineage is not None
    assert (lineage.template, lineage.ref, lineage.current) == (DEMO, "feature@2", None)
    assert key in (await world.store.observe()).revisions
    with pytest.raises(NotFound):
        await world.store.reset_lineage(lineage_key(template_key(ACME, "none"), None))


async def test_an_ended_build_takes_no_more_news(world: World) -> None:
    build = await world.start_build()
    await world.store.finish_build(build, None, 0.0)
    for call in (world.store.update_build(build), world.store.finish_build(build, world.version(build, V2), 0.0)):
        with pytest.raises(Conflict) as caught:
            await call
        assert caught.value.code == "build_ended"


async def test_a_build_cannot_succeed_before_it_ran_nor_end_by_an_update(world: World) -> None:
    build = Build(id=new_build_id(), lineage=LINEAGE, template=DEMO, tenant=ACME, revision=1)
    assert await world.store.create_build(build, world.fence)
    await world.store.update_build(build)
    for call in (
        world.store.finish_build(build, world.version(build, V2), 0.0),
        world.store.update_build(replace(build, state="succeeded")),
    ):
        with pytest.raises(Conflict) as caught:
            await call
        assert caught.value.code == "illegal_transition"
    assert (await world.store.get_build(build.id)).state == "queued"


async def test_a_build_of_a_missing_template_is_refused(world: World) -> None:
    gone = template_key(ACME, "none")
    build = Build(id=new_build_id(), lineage=lineage_key(gone, None), template=gone, tenant=ACME, revision=1)
    with pytest.raises(NotFound) as caught:
        await world.store.create_build(build, world.fence)
    assert caught.value.code == "template_not_found"


async def test_builds_are_listed_newest_first_and_the_oldest_ended_ones_forgotten(
    valkey_url: str, deployment: str
) -> None:
    store = RedisStore(valkey_url, deployment, StoreOptions(keep_builds=3, operation_timeout_s=20.0))
    world = await new_world(store, published=False)
    made: list[BuildId] = []
    for _ in range(5):
        build = await world.start_build()
        made.append(build.id)
        await store.finish_build(build, None, 0.0)
    kept = [b.id for b in await store.list_builds(DEMO, 10)]
    assert kept == made[:1:-1]
    assert [b.id for b in await store.list_builds(None, 2)] == kept[:2]
    assert await store.list_builds(template_key(ACME, "none"), 10) == []
    with pytest.raises(NotFound):
        await store.get_build(made[0])
    await store.close()


async def test_a_version_in_use_cannot_be_deleted(world: World) -> None:
    ready = await world.ready()
    with pytest.raises(Conflict) as caught:
        await world.store.delete_version(V1)
    assert caught.value.code == "version_in_use"
    await world.publish(V2)
    with pytest.raises(Conflict):
        await world.store.delete_version(V1)
    await world.store.drain_sandbox(ready, "old", "scheduler", None, True)
    await world.store.sandbox_gone(ready)
    await world.store.delete_version(V1)
    await world.store.delete_version(V1)
    with pytest.raises(NotFound):
        await world.store.get_version(V1)


async def test_a_version_that_two_refs_share_stays_current_until_neither_wants_it(world: World) -> None:
    await world.put_pool("main", ref="main")
    await world.publish(V1, ref="main")
    await world.publish(V2)
    assert (await world.store.get_version(V1)).superseded_at is None
    await world.publish(V2, ref="main")
    assert (await world.store.get_version(V1)).superseded_at is not None


async def test_a_build_that_ends_after_its_template_was_deleted_publishes_nothing(world: World) -> None:
    build = await world.start_build()
    await world.store.delete_pool(POOL)
    await world.store.remove_pool(POOL, world.fence)
    await world.store.delete_template(DEMO)
    await world.put_template()
    again = await world.start_build()
    assert [found.id for found in await world.store.list_builds(None, 10)] == [again.id]
    with pytest.raises(NotFound) as caught:
        await world.store.finish_build(build, world.version(build, V2), 0.0)
    assert caught.value.code == "build_not_found"
    with pytest.raises(NotFound):
        await world.store.update_build(build)
    assert await world.store.find_version(V2) is None


async def test_failures_of_sandboxes_to_become_ready_are_counted_and_reset(world: World) -> None:
    await world.store.note_provision(LINEAGE, False, "boom", 10.0)
    twice = await world.store.note_provision(LINEAGE, False, "bang", 20.0)
    assert (twice.provision_failures, twice.last_error) == (2, "bang")
    assert twice.next_attempt_at == pytest.approx(await world.store.now() + 20.0, abs=30.0)
    good = await world.store.note_provision(LINEAGE, True, "", 0.0)
    assert (good.provision_failures, good.last_error, good.next_attempt_at) == (0, None, 0.0)
    with pytest.raises(NotFound):
        await world.store.note_provision(lineage_key(DEMO, "none"), False, "x", 0.0)


async def test_decisions_are_kept_until_the_pool_is_removed(world: World) -> None:
    await world.store.explain({POOL: '{"target": 1}', pool_key(ACME, "x"): "é"})
    await world.store.explain({})
    assert await world.store.explained(POOL) == '{"target": 1}'
    assert await world.store.explained(pool_key(ACME, "x")) == "é"
    assert await world.store.explained(PoolKey("none")) is None
    await world.store.delete_pool(POOL)
    await world.store.remove_pool(POOL, world.fence)
    assert await world.store.explained(POOL) is None


async def test_pools_of_one_lineage_are_seen_before_its_first_build(store: RedisStore) -> None:
    await new_world(store, published=False)
    observed = await store.observe()
    assert observed.revisions == {LINEAGE: 1}
    assert observed.lineages == {}
    assert isinstance(observed.pools[0], Pool)
