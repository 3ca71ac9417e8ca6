"""Records and reality: what is over ends, what is gone is noticed, what is unknown goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.wire import ExecStart
from controlplane.agentclient.port import Door
from controlplane.errors import NotFound, Retryable
from controlplane.ids import BuildId, SandboxId, SessionId
from controlplane.loops.reality import Reality
from controlplane.runtime.port import SandboxSpec
from controlplane.runtime.simulated import SimulatedAgent, SimulatedRuntime
from controlplane.runtime.simulated.faults import Fault
from controlplane.store.redis_store import RedisStore
from tests.provisioning.plant import Plant, until


async def empty_the_store(store: RedisStore, deployment: str) -> None:
    """What a lost volume or a FLUSHALL does to this deployment."""
    link = store._link
    keys = [key async for key in link._client.scan_iter(match=f"*{deployment}*")]
    if keys:
        await link._client.delete(*keys)


class Silence:
    """Sandboxes that do not say who holds them."""

    on = True

    def draw(self, call: str) -> Fault | None:
        silent = self.on and call == "binding"
        return Fault(error=lambda: Retryable("sandbox_unreachable", "No answer.")) if silent else None


async def test_a_sandbox_that_is_gone_ends_its_session_with_the_reason_and_is_replaced(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    session = await plant.attach(pool)
    assert session.sandbox is not None
    await plant.runtime.destroy(session.sandbox)
    await plant.reality.compare()
    ended = await plant.store.get_session(session.id)
    assert (ended.state, ended.end_reason) == ("ended", "sandbox_lost")
    assert "no longer there" in (ended.end_detail or "")
    await plant.settle()
    assert len(await plant.sandboxes(pool, "ready")) == 1


async def test_a_ready_sandbox_that_stopped_is_replaced(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    (sandbox,) = await plant.sandboxes(pool)
    plant.runtime.kill(sandbox.id)
    await plant.reality.compare()
    assert "has stopped" in (await plant.store.get_sandbox(sandbox.id)).reason
    await plant.settle()
    (other,) = await plant.sandboxes(pool, "ready")
    assert other.id != sandbox.id
    assert await plant.running() == {other.id}


async def test_a_sandbox_that_is_being_made_is_not_taken_for_gone(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=0)
    plant.queue.held = True
    await plant.claim(pool)
    await plant.tick()
    await plant.reality.compare()
    assert len(await plant.sandboxes(pool, "building")) == 1


async def test_what_runs_without_a_record_is_destroyed_when_nobody_can_say_what_it_is(plant: Plant) -> None:
    await plant.add_demo(min_ready=1)
    image = (await plant.store.list_versions())[0].image
    stray = SandboxId("sb-stray")
    for labels in ({}, {"purpose": "session"}, {"purpose": "session", "pool": "acme/demo"}, {"purpose": "other"}):
        await plant.runtime.create(
            SandboxSpec(id=stray, image=image, resources=(await plant.store.list_pools())[0].resources, labels=labels)
        )
        await plant.reality.compare()
        assert stray not in await plant.running(), labels


async def test_the_sandbox_of_a_live_build_is_left_alone_and_one_of_an_ended_build_is_destroyed(plant: Plant) -> None:
    template = await plant.add_template()
    build_id = await plant.new_build(template)
    base = await plant.runtime.ensure_base("debian12", lambda line: None)
    spec = SandboxSpec(
        id=SandboxId("sb-build"),
        image=base.ref,
        resources=(await plant.store.get_template(template)).resources,
        labels={"purpose": "build", "build": build_id},
    )
    build = replace(await plant.store.get_build(build_id), state="running", sandbox="sb-build")
    await plant.store.update_build(build)
    await plant.runtime.create(spec)
    await plant.reality.compare()
    assert "sb-build" in await plant.running()
    await plant.store.finish_build(build, None, 0.0)
    await plant.reality.compare()
    assert "sb-build" not in await plant.running()


async def test_after_the_store_was_emptied_held_sandboxes_and_their_sessions_are_back_and_the_rest_goes(
    plant: Plant, store: RedisStore, deployment: str
) -> None:
    pool = await plant.add_demo(min_ready=2)
    session = await plant.attach(pool, labels={"run": "7"})
    await plant.settle()
    idle = {sandbox.id for sandbox in await plant.sandboxes(pool, "ready")}
    await empty_the_store(store, deployment)
    await store.ensure_schema()
    assert await store.list_sandboxes(None) == []
    await plant.reality.compare()
    back = await store.get_session(session.id)
    assert (back.state, back.sandbox, back.tenant) == ("attached", session.sandbox, "acme")
    assert back.labels == {"run": "7"}
    assert back.expires_at is not None and back.expires_at > await store.now()
    assert await plant.running() == {session.sandbox}
    assert not idle & await plant.running()
    await store.end_session(session.id, "deleted", "", "test")
    await plant.settle()
    assert await plant.running() == set()


async def test_a_sandbox_that_does_not_say_who_holds_it_is_asked_again_before_it_goes(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    silence = Silence()
    runtime = SimulatedRuntime(start_s=0.0, deployment=deployment)
    plant = Plant(store, deployment, tmp_path, runtime=runtime, agents=SimulatedAgent(runtime.world, faults=silence))
    session = await plant.attach(await plant.add_demo(min_ready=1))
    assert session.sandbox is not None
    await empty_the_store(store, deployment)
    await store.ensure_schema()
    patient = Reality(store=store, runtime=runtime, agents=plant.agents, patience_s=60.0)
    for silence.on in (True, True, False):
        await patient.compare()
        assert session.sandbox in await plant.running()
    assert (await store.get_session(session.id)).state == "attached"
    await empty_the_store(store, deployment)
    await store.ensure_schema()
    silence.on = True
    await Reality(store=store, runtime=runtime, agents=plant.agents, patience_s=0.0).compare()
    assert await plant.running() == set()


async def test_a_ready_sandbox_whose_record_alone_was_lost_is_kept_while_its_version_is_known(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    (sandbox,) = await plant.sandboxes(pool)
    await plant.store.drain_sandbox(sandbox.id, "test", "test", None, True)
    await plant.store.sandbox_gone(sandbox.id)
    await plant.reality.compare()
    (adopted,) = await plant.sandboxes(pool)
    assert (adopted.id, adopted.state, adopted.step) == (sandbox.id, "ready", "adopted")


async def test_a_sandbox_of_a_session_that_ended_is_not_adopted(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    session = await plant.attach(pool)
    await plant.store.end_session(session.id, "deleted", "", "test")
    assert session.sandbox is not None
    await plant.store.sandbox_gone(session.sandbox)
    await plant.reality.compare()
    assert session.sandbox not in await plant.running()


async def test_an_expired_lease_frees_the_sandbox(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=0)
    await plant.claim(pool, ttl_s=0.2)
    await plant.settle()

    async def ended() -> bool:
        await plant.reaper.end_due()
        sessions = await plant.store.list_sessions(None, ["ended"], {}, 10)
        return [session.end_reason for session in sessions] == ["expired"]

    await until(ended)
    await plant.settle()
    assert await plant.running() == set()


async def test_a_waiting_session_that_nobody_serves_in_time_ends_with_the_reason(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=0)
    plant.queue.held = True
    result = await plant.claim(pool, wait_s=0.1)
    assert result.session is not None
    key = result.session.id

    async def ended() -> bool:
        await plant.reaper.end_due()
        return (await plant.store.get_session(key)).end_reason == "wait_timeout"

    await until(ended)


async def test_a_running_command_counts_as_activity_and_an_idle_session_ends(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=2)
    busy = await plant.attach(pool, idle_timeout_s=0.2)
    quiet = await plant.attach(pool, idle_timeout_s=0.2)
    assert busy.sandbox is not None and busy.door is not None
    await plant.agents.exec_start(Door(busy.sandbox, busy.door), busy.id, ExecStart(id="long", script="sleep 600"))

    async def quiet_ended() -> bool:
        await plant.reaper.end_idle()
        return (await plant.store.get_session(quiet.id)).end_reason == "idle"

    await until(quiet_ended)
    assert (await plant.store.get_session(busy.id)).state == "attached"


async def test_idle_rules_never_hit_unclaimed_members_of_a_pool(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    before = await plant.sandboxes(pool, "ready")
    await plant.reaper.end_idle()
    await plant.reaper.end_due()
    assert await plant.sandboxes(pool, "ready") == before


async def test_a_session_whose_caller_died_before_binding_is_bound(plant: Plant) -> None:
    pool = await plant.add_demo(min_ready=1)
    result = await plant.claim(pool)
    assert result.session is not None and result.session.state == "binding"
    await plant.reaper.finish_bindings()
    assert (await plant.store.get_session(result.session.id)).state == "attached"


async def test_images_of_superseded_versions_and_logs_of_forgotten_builds_are_collected(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path, keep_superseded_s=0.0, young_s=0.0)
    pool = await plant.add_demo(min_ready=1)
    old = await store.get_version(await plant.current(pool))
    await plant.garbage.collect()
    assert old.image in {image.ref for image in await plant.runtime.list_images()}
    await plant.add_template("demo", env={"NEW": "1"})
    await plant.settle()
    new = await store.get_version(await plant.current(pool))
    await plant.logs.append(BuildId("bd-forgotten"), "resolve", "old news\n")
    kept = {build.id for build in await store.list_builds(None, 100)}
    await plant.garbage.collect()
    images = {image.ref for image in await plant.runtime.list_images()}
    assert new.image in images and old.image not in images
    with pytest.raises(NotFound):
        await store.get_version(old.id)
    assert set(await plant.logs.builds()) == kept


async def test_the_image_of_a_superseded_version_stays_while_a_session_runs_on_it(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path, keep_superseded_s=0.0, young_s=0.0)
    pool = await plant.add_demo(min_ready=1)
    old = await store.get_version(await plant.current(pool))
    session = await plant.attach(pool)
    await plant.add_template("demo", env={"NEW": "1"})
    await plant.settle()
    await plant.garbage.collect()
    assert old.image in {image.ref for image in await plant.runtime.list_images()}
    await store.end_session(SessionId(session.id), "deleted", "", "test")
    await plant.settle()
    await plant.garbage.collect()
    assert old.image not in {image.ref for image in await plant.runtime.list_images()}
