"""The life of sandboxes, and the limits of their pools."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controlplane.errors import Conflict, NotFound
from controlplane.ids import SandboxId, new_sandbox_id, new_session_id, pool_key
from controlplane.model.sandbox import Sandbox, Session
from controlplane.store.port import NewSandbox, PoolCounts
from tests.store.rewind import Rewind
from tests.store.world import ACME, DEMO, POOL, V1, World, new_world


def another(sandbox: Sandbox, count_limit: int = 1000) -> NewSandbox:
    return NewSandbox(sandbox=replace(sandbox, id=new_sandbox_id()), count_limit=count_limit)


async def test_a_sandbox_is_built_step_by_step_then_ready(world: World) -> None:
    sandbox = await world.sandbox()
    assert (sandbox.state, sandbox.step, sandbox.door) == ("building", "starting", f"sim:{sandbox.id}")
    assert sandbox.deadline_at == pytest.approx(await world.store.now() + 60.0, abs=30.0)
    again = await world.store.sandbox_step(sandbox.id, "probing", None, 10.0)
    assert (again.step, again.door) == ("probing", f"sim:{sandbox.id}")
    assert await world.store.sandbox_ready(sandbox.id, 500.0) is None
    ready = await world.store.get_sandbox(sandbox.id)
    assert (ready.state, ready.deadline_at) == ("ready", None)
    assert ready.ready_at is not None and ready.expires_at == pytest.approx(ready.ready_at + 500.0, abs=0.01)


async def test_a_new_sandbox_can_be_given_the_time_after_which_it_counts_as_stuck(world: World) -> None:
    sandbox = await world.sandbox()
    new = replace(another(sandbox), deadline_s=120.0)
    assert await world.store.create_sandbox(new, world.fence)
    made = await world.store.get_sandbox(new.sandbox.id)
    assert made.deadline_at == pytest.approx(made.created_at + 120.0, abs=0.01)


async def test_a_pool_never_holds_more_than_its_limit_however_many_ask(world: World) -> None:
    # Case 8: building, claimed and draining ones count, and replicas act at once.
    await world.put_pool(max_total=10)
    template = await world.sandbox()
    await world.attached()
    await world.store.drain_sandbox(await world.ready(), "age", "scheduler", None, True)
    made = await asyncio.gather(*(world.store.create_sandbox(another(template), world.fence) for _ in range(30)))
    assert sum(made) == 7
    assert len(await world.store.list_sandboxes(POOL)) == 10


async def test_the_limit_given_counts_if_it_is_lower_than_the_pools(world: World) -> None:
    sandbox = await world.sandbox()
    assert not await world.store.create_sandbox(another(sandbox, count_limit=1), world.fence)
    assert await world.store.create_sandbox(another(sandbox, count_limit=2), world.fence)


async def test_a_draining_sandbox_counts_until_it_is_gone(world: World) -> None:
    await world.put_pool(max_total=1)
    ready = await world.ready()
    sandbox = await world.store.get_sandbox(ready)
    assert await world.store.drain_sandbox(ready, "age", "scheduler", world.fence, True)
    assert not await world.store.create_sandbox(another(sandbox), world.fence)
    await world.store.sandbox_gone(ready)
    assert await world.store.create_sandbox(another(sandbox), world.fence)


async def test_creating_the_same_sandbox_again_changes_nothing(world: World) -> None:
    # Case 7.
    ready = await world.ready()
    before = await world.store.get_sandbox(ready)
    assert await world.store.create_sandbox(NewSandbox(sandbox=before, count_limit=50), world.fence)
    assert await world.store.get_sandbox(ready) == before
    assert (await world.store.pool_counts(POOL)) == PoolCounts(ready=1)


async def test_a_missing_deleting_or_newer_pool_takes_no_sandbox(world: World) -> None:
    # Case 20: a pool of the same name, but not the one the plan was made for.
    sandbox = await world.sandbox()
    foreign = replace(sandbox, id=new_sandbox_id(), pool_uid="pl-before")
    assert not await world.store.create_sandbox(NewSandbox(sandbox=foreign, count_limit=50), world.fence)
    lost = replace(sandbox, id=new_sandbox_id(), pool=pool_key(ACME, "none"))
    assert not await world.store.create_sandbox(NewSandbox(sandbox=lost, count_limit=50), world.fence)
    await world.store.delete_pool(POOL)
    assert not await world.store.create_sandbox(another(sandbox), world.fence)


async def test_the_first_of_the_queue_gets_the_first_ready_sandbox(world: World) -> None:
    first, second = (await world.claim()).session, (await world.claim()).session
    assert first is not None and second is not None
    sandbox = await world.sandbox()
    served = await world.store.sandbox_ready(sandbox.id, 3600.0)
    assert served is not None
    assert (served.id, served.state, served.sandbox, served.version) == (first.id, "binding", sandbox.id, V1)
    assert (served.start, served.start_reason, served.door) == ("cold", "pool_empty", sandbox.door)
    assert await world.state(sandbox.id) == "claimed"
    assert await world.store.sandbox_ready(sandbox.id, 3600.0) == served, "a repeat gives the same answer"
    assert await world.store.queue_position(second.id) == 0


async def test_sandboxes_that_become_ready_at_once_serve_one_session_each(world: World) -> None:
    waiting = [(await world.claim()).session for _ in range(20)]
    sandboxes = [await world.sandbox() for _ in range(25)]
    served = await asyncio.gather(*(world.store.sandbox_ready(s.id, 3600.0) for s in sandboxes))
    assert sorted(s.id for s in served if s) == sorted(s.id for s in waiting if s)
    assert len({s.sandbox for s in served if s}) == 20
    assert (await world.store.pool_counts(POOL)) == PoolCounts(ready=5, claimed=20)


async def test_steps_are_only_for_what_is_built_or_drained(world: World) -> None:
    ready = await world.ready()
    with pytest.raises(Conflict) as caught:
        await world.store.sandbox_step(ready, "again", None, 1.0)
    assert caught.value.code == "illegal_transition"
    await world.store.drain_sandbox(ready, "age", "scheduler", None, True)
    assert (await world.store.sandbox_step(ready, "destroying", None, 1.0)).state == "draining"


async def test_a_drained_or_failed_sandbox_never_becomes_ready(world: World) -> None:
    # Case 12.
    drained, failed = await world.sandbox(), await world.sandbox()
    await world.store.drain_sandbox(drained.id, "shrink", "scheduler", None, True)
    await world.store.fail_sandbox(failed.id, "start_timeout", "reaper")
    for sandbox in (drained, failed):
        with pytest.raises(Conflict) as caught:
            await world.store.sandbox_ready(sandbox.id, 3600.0)
        assert caught.value.code == "illegal_transition"
    assert (await world.store.pool_counts(POOL)).ready == 0
    assert (await world.claim()).outcome == "waiting"


async def test_a_claimed_sandbox_is_never_drained_as_unclaimed(world: World) -> None:
    # Case 11.
    session = await world.attached()
    assert session.sandbox is not None
    assert not await world.store.drain_sandbox(session.sandbox, "shrink", "scheduler", world.fence, True)
    assert await world.session_state(session.id) == "attached"


async def test_claims_and_evictions_at_once_never_touch_the_same_sandbox(world: World) -> None:
    ready = [await world.ready() for _ in range(30)]
    drains = [world.store.drain_sandbox(key, "evict", "scheduler", world.fence, True) for key in ready]
    claims = [world.claim() for _ in range(30)]
    results = await asyncio.gather(*(c for pair in zip(drains, claims, strict=True) for c in pair))
    drained = sum(r is True for r in results)
    taken = [r.session.sandbox for r in results if not isinstance(r, bool) and r.outcome == "claimed" and r.session]
    assert drained + len(set(taken)) == 30
    assert len(taken) == len(set(taken))


async def test_draining_a_claimed_sandbox_by_force_ends_its_session(world: World) -> None:
    session = await world.attached()
    assert session.sandbox is not None
    assert await world.store.drain_sandbox(session.sandbox, "host_drained", "ops", None, False)
    ended = await world.store.get_session(session.id)
    assert (ended.end_reason, ended.end_detail) == ("sandbox_lost", "host_drained")
    assert await world.state(session.sandbox) == "draining"


async def test_draining_is_repeatable_and_of_a_missing_one_false(world: World) -> None:
    ready = await world.ready()
    assert await world.store.drain_sandbox(ready, "age", "scheduler", None, True)
    assert await world.store.drain_sandbox(ready, "other", "scheduler", None, True)
    assert (await world.store.get_sandbox(ready)).reason == "age"
    assert not await world.store.drain_sandbox(SandboxId("sb-none"), "age", "scheduler", None, True)


async def test_only_a_draining_sandbox_can_be_gone_and_a_missing_one_is_no_error(world: World) -> None:
    ready = await world.ready()
    with pytest.raises(Conflict) as caught:
        await world.store.sandbox_gone(ready)
    assert caught.value.code == "illegal_transition"
    await world.store.drain_sandbox(ready, "age", "scheduler", None, True)
    await world.store.sandbox_gone(ready)
    await world.store.sandbox_gone(ready)
    assert await world.store.find_sandbox(ready) is None
    with pytest.raises(NotFound) as missing:
        await world.store.get_sandbox(ready)
    assert missing.value.code == "sandbox_not_found"


async def test_a_failed_sandbox_keeps_its_first_reason_and_can_be_drained(world: World) -> None:
    sandbox = await world.sandbox()
    await world.store.fail_sandbox(sandbox.id, "first", "worker")
    again = await world.store.fail_sandbox(sandbox.id, "second", "reaper")
    assert again is not None and again.reason == "first"
    assert await world.store.drain_sandbox(sandbox.id, "failed", "scheduler", None, True)
    assert await world.store.fail_sandbox(SandboxId("sb-none"), "x", "reaper") is None
    with pytest.raises(Conflict):
        await world.store.fail_sandbox(sandbox.id, "third", "reaper")


async def test_a_sandbox_of_another_pool_uid_is_not_handed_out(world: World) -> None:
    sandbox = await world.ready()
    lost = await world.store.get_sandbox(sandbox)
    await world.store.drain_sandbox(sandbox, "age", "scheduler", None, True)
    await world.store.sandbox_gone(sandbox)
    stranger = replace(lost, id=new_sandbox_id(), pool_uid="pl-before", session=None)
    assert await world.store.adopt(stranger, None)
    assert await world.state(stranger.id) == "draining", "case 20: never adopts the old object"


async def test_a_running_sandbox_and_its_session_can_be_recorded_again(world: World, rewind: Rewind) -> None:
    session = await world.attached(labels={"a": "b"}, idle_timeout_s=60.0, idempotency_key="key")
    assert session.sandbox is not None
    sandbox = await world.store.get_sandbox(session.sandbox)
    await rewind.forget_everything()
    again = await new_world(world.store)
    assert await again.store.adopt(sandbox, session)
    assert not await again.store.adopt(sandbox, session)
    assert await again.state(sandbox.id) == "claimed"
    rebuilt = await again.store.get_session(session.id)
    assert (rebuilt.state, rebuilt.sandbox, rebuilt.expires_at) == ("attached", sandbox.id, session.expires_at)
    repeated = await again.claim(idempotency_key="key")
    assert repeated.outcome == "repeat" and repeated.sessions_now == 1


async def test_an_adopted_ready_sandbox_serves_again_any_other_unclaimed_one_is_destroyed(world: World) -> None:
    # Case 12.
    home = await world.store.get_pool(POOL)
    model = replace(await world.sandbox(), pool_uid=home.uid, ready_at=None)
    await world.store.drain_sandbox(model.id, "age", "scheduler", None, True)
    ready = replace(model, id=new_sandbox_id(), state="ready", expires_at=await world.store.now() + 3600.0)
    building = replace(model, id=new_sandbox_id(), state="building")
    claimed = replace(model, id=new_sandbox_id(), state="claimed")
    for sandbox in (ready, building, claimed):
        assert await world.store.adopt(sandbox, None)
    assert await world.state(building.id) == "draining"
    assert await world.state(claimed.id) == "draining"
    session = (await world.claim()).session
    assert session is not None and session.sandbox == ready.id


async def test_a_sandbox_whose_session_has_ended_or_holds_another_is_destroyed(world: World) -> None:
    holding = await world.attached()
    model = await world.store.get_sandbox(holding.sandbox or SandboxId(""))
    twin = replace(model, id=new_sandbox_id())
    assert await world.store.adopt(twin, holding)
    assert await world.state(twin.id) == "draining"
    ended = Session(id=new_session_id(), tenant=ACME, pool=POOL, state="attached", ttl_s=10.0)
    orphan = replace(model, id=new_sandbox_id())
    assert await world.store.adopt(orphan, ended)
    await world.store.end_session(ended.id, "deleted", "", "k1")
    assert await world.state(orphan.id) == "draining"


async def test_every_change_of_a_sandbox_is_an_event_with_actor_and_reason(world: World) -> None:
    sandbox = await world.sandbox()
    await world.store.sandbox_ready(sandbox.id, 3600.0)
    session = (await world.claim()).session
    assert session is not None
    await world.store.bound(session.id, sandbox.id)
    await world.store.end_session(session.id, "deleted", "done", "k1")
    await world.store.sandbox_gone(sandbox.id)
    events = await world.store.read_events("0", None, 1000, 0.0)
    mine = [e for e in events if e.subject in (sandbox.id, session.id)]
    assert [e.kind for e in mine] == [
        "sandbox.building", "sandbox.step", "sandbox.ready", "sandbox.claimed", "session.binding",
        "session.attached", "sandbox.draining", "session.ended", "sandbox.gone",
    ]  # fmt: skip
    last = mine[-2]
    assert (last.actor, last.reason, last.tenant, last.data["detail"]) == ("k1", "deleted", ACME, "done")
    assert all(e.at > 0 and e.id for e in mine)


async def test_counts_are_by_state(world: World) -> None:
    await world.ready()
    await world.sandbox()
    await world.attached()
    failed = await world.sandbox()
    await world.store.fail_sandbox(failed.id, "x", "worker")
    await world.store.drain_sandbox((await world.sandbox()).id, "x", "scheduler", None, True)
    expected = PoolCounts(ready=1, building=1, claimed=1, failed=1, draining=1)
    assert await world.store.pool_counts(POOL) == expected
    assert len(await world.store.list_sandboxes(None)) == 5
    assert await world.store.list_sandboxes(pool_key(ACME, "none")) == []
    assert (await world.store.get_pool(POOL)).template == DEMO
