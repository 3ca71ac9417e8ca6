"""From claim to attach: bound, claim_next, and what a lost sandbox does to its session."""

from __future__ import annotations

import pytest

from controlplane.errors import Conflict, NotFound
from controlplane.ids import SandboxId, SessionId
from controlplane.store.redis_store import RedisStore
from tests.store.rewind import Rewind
from tests.store.world import POOL, V2, World


async def test_bound_attaches_and_starts_the_lease(world: World) -> None:
    await world.ready()
    session = (await world.claim(ttl_s=100.0, env={"TOKEN": "x"})).session
    assert session is not None and session.sandbox is not None
    attached = await world.store.bound(session.id, session.sandbox)
    now = await world.store.now()
    assert attached.state == "attached"
    assert attached.expires_at == pytest.approx(now + 100.0, abs=30.0)
    assert attached.attached_at == pytest.approx(now, abs=30.0)
    assert attached.env == {}, "env is kept only until bind"


async def test_bound_again_is_the_same_session(world: World) -> None:
    session = await world.attached()
    assert session.sandbox is not None
    assert await world.store.bound(session.id, session.sandbox) == session


async def test_bound_after_the_end_is_a_conflict_and_the_sandbox_drains(world: World) -> None:
    sandbox = await world.ready()
    session = (await world.claim()).session
    assert session is not None
    await world.store.end_session(session.id, "deleted", "", "k1")
    with pytest.raises(Conflict) as caught:
        await world.store.bound(session.id, sandbox)
    assert caught.value.code == "session_ended"
    assert await world.state(sandbox) == "draining"


async def test_bound_with_another_sandbox_is_a_conflict(world: World) -> None:
    await world.ready()
    session = (await world.claim()).session
    assert session is not None
    with pytest.raises(Conflict) as caught:
        await world.store.bound(session.id, SandboxId("sb-other"))
    assert caught.value.code == "sandbox_changed"


async def test_a_waiting_session_cannot_be_bound(world: World) -> None:
    session = (await world.claim()).session
    assert session is not None
    with pytest.raises(Conflict) as caught:
        await world.store.bound(session.id, SandboxId("sb-1"))
    assert caught.value.code == "illegal_transition"


async def test_a_failed_bind_fails_the_sandbox_and_takes_the_next(world: World) -> None:
    # Case 4.
    second, first = await world.ready(), await world.ready()
    session = (await world.claim()).session
    assert session is not None and session.sandbox == first
    result = await world.store.claim_next(session.id, first, "no answer")
    assert result.outcome == "claimed"
    assert result.session is not None
    assert (result.session.sandbox, result.session.state) == (second, "binding")
    assert (result.session.start, result.session.bind_failures) == ("warm", 1)
    bad = await world.store.get_sandbox(first)
    assert (bad.state, bad.reason, bad.session) == ("failed", "no answer", None)


async def test_a_failed_bind_without_another_sandbox_waits_in_front_of_all_others(world: World) -> None:
    sandbox = await world.ready()
    session = (await world.claim(env={"A": "1"})).session
    assert session is not None
    await world.claim()
    result = await world.store.claim_next(session.id, sandbox, "no answer")
    assert (result.outcome, result.position) == ("waiting", 0)
    assert result.session is not None
    assert (result.session.start, result.session.start_reason) == ("cold", "bind_failed")
    assert (result.session.sandbox, result.session.door, result.session.version) == (None, None, None)
    assert result.session.env == {"A": "1"}, "the next bind needs it"
    served = await world.store.sandbox_ready((await world.sandbox()).id, 3600.0)
    assert served is not None and served.id == session.id


async def test_claim_next_repeated_finds_its_own_result(world: World) -> None:
    await world.ready()
    first = await world.ready()
    session = (await world.claim()).session
    assert session is not None
    once = await world.store.claim_next(session.id, first, "no answer")
    twice = await world.store.claim_next(session.id, first, "no answer")
    assert twice.outcome == "claimed"
    assert twice.session == once.session


async def test_claim_next_serves_a_session_that_was_queued_again_meanwhile(world: World) -> None:
    other, first = await world.ready(), await world.ready()
    session = (await world.claim()).session
    assert session is not None
    await world.store.fail_sandbox(first, "runtime_lost", "reaper")
    assert await world.session_state(session.id) == "waiting"
    result = await world.store.claim_next(session.id, first, "no answer")
    assert result.outcome == "claimed"
    assert result.session is not None and result.session.sandbox == other


async def test_claim_next_keeps_the_claims_own_conditions(world: World) -> None:
    await world.ready(max_age_s=100.0)
    await world.publish(V2)
    bad = await world.ready(version=V2)
    session = (await world.claim(allow_superseded=False, min_remaining_s=10.0)).session
    assert session is not None
    assert (await world.store.claim_next(session.id, bad, "no answer")).outcome == "waiting"


async def test_claim_next_of_an_attached_or_ended_session_is_a_conflict(world: World) -> None:
    session = await world.attached()
    assert session.sandbox is not None
    with pytest.raises(Conflict) as caught:
        await world.store.claim_next(session.id, session.sandbox, "no answer")
    assert caught.value.code == "illegal_transition"
    await world.store.end_session(session.id, "deleted", "", "k1")
    with pytest.raises(Conflict) as caught:
        await world.store.claim_next(session.id, session.sandbox, "no answer")
    assert caught.value.code == "session_ended"


async def test_claim_next_in_a_deleted_pool_ends_the_session(world: World) -> None:
    sandbox = await world.ready()
    session = (await world.claim()).session
    assert session is not None
    await world.store.delete_pool(POOL)
    result = await world.store.claim_next(session.id, sandbox, "no answer")
    assert result.session is not None
    assert (result.session.state, result.session.end_reason) == ("ended", "pool_deleted")


async def test_the_loss_of_an_attached_sandbox_ends_its_session_with_the_reason(world: World) -> None:
    # Case 19.
    session = await world.attached()
    assert session.sandbox is not None
    failed = await world.store.fail_sandbox(session.sandbox, "container exited (137)", "reaper")
    assert failed is not None and (failed.state, failed.reason) == ("failed", "container exited (137)")
    ended = await world.store.get_session(session.id)
    assert (ended.end_reason, ended.end_detail) == ("sandbox_lost", "container exited (137)")


async def test_the_loss_of_a_sandbox_while_it_is_bound_queues_its_session_first(world: World) -> None:
    sandbox = await world.ready()
    session = (await world.claim()).session
    assert session is not None
    await world.claim()
    await world.store.fail_sandbox(sandbox, "runtime_lost", "reaper")
    assert await world.store.queue_position(session.id) == 0


async def test_a_bind_that_nobody_finishes_ends_in_time(world: World, rewind: Rewind) -> None:
    sandbox = await world.ready()
    session = (await world.claim()).session
    assert session is not None
    assert await world.store.due_sessions(10) == []
    await rewind.session(session.id, 31.0)
    (ended,) = await world.store.due_sessions(10)
    assert (ended.id, ended.end_reason) == (session.id, "wait_timeout")
    assert await world.state(sandbox) == "draining"


async def test_waiting_sessions_get_what_became_fit_without_a_new_sandbox(world: World) -> None:
    await world.ready()
    await world.publish(V2)
    waiting = [(await world.claim(allow_superseded=False)).session for _ in range(2)]
    await world.publish()
    (served,) = await world.store.serve_waiting(POOL, 100)
    assert waiting[0] is not None and served.id == waiting[0].id
    assert served.state == "binding"
    assert await world.store.serve_waiting(POOL, 100) == []


async def test_everyone_who_waits_can_be_told_that_it_is_in_vain(world: World) -> None:
    waiting = [(await world.claim()).session for _ in range(3)]
    ended = await world.store.end_waiting(POOL, "template_failed", "step 2 failed", "scheduler")
    assert [s.id for s in ended] == [s.id for s in waiting if s is not None]
    assert {(s.state, s.end_reason, s.end_detail) for s in ended} == {("ended", "template_failed", "step 2 failed")}


async def test_unknown_sessions_are_not_found(store: RedisStore, world: World) -> None:
    nobody = SessionId("se-none")
    for call in (store.get_session(nobody), store.end_session(nobody, "deleted", "", ""), store.queue_position(nobody)):
        with pytest.raises(NotFound) as caught:
            await call
        assert caught.value.code == "session_not_found"
    assert await store.find_session(nobody) is None
