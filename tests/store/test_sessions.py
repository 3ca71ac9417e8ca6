"""Lease, activity, end and listing of sessions."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.errors import Conflict, Permanent
from controlplane.ids import TenantId, pool_key
from controlplane.model.tenancy import Tenant
from controlplane.store.redis_store import RedisStore, StoreOptions
from tests.store.rewind import Rewind
from tests.store.world import ACME, POOL, World, new_world


async def test_a_lease_without_keep_alive_ends_and_gives_the_sandbox_back(world: World, rewind: Rewind) -> None:
    # Case 15.
    session = await world.attached(ttl_s=100.0)
    assert session.sandbox is not None
    await rewind.session(session.id, 101.0)
    (ended,) = await world.store.due_sessions(10)
    assert (ended.id, ended.state, ended.end_reason) == (session.id, "ended", "expired")
    assert await world.state(session.sandbox) == "draining"
    assert (await world.claim()).sessions_now == 1


async def test_a_session_without_activity_is_not_ended_before_its_lease(world: World, rewind: Rewind) -> None:
    session = await world.attached(ttl_s=1000.0, idle_timeout_s=5.0)
    await rewind.session(session.id, 900.0)
    assert await world.store.due_sessions(10) == []
    assert await world.session_state(session.id) == "attached"


async def test_a_keep_alive_that_comes_first_wins_over_expiry(world: World, rewind: Rewind) -> None:
    # Case 16.
    session = await world.attached(ttl_s=100.0)
    await rewind.session(session.id, 99.0)
    extended = await world.store.extend_session(session.id, 500.0)
    assert extended.expires_at == pytest.approx(await world.store.now() + 500.0, abs=30.0)
    assert await world.store.due_sessions(10) == []
    assert await world.session_state(session.id) == "attached"


async def test_the_record_decides_what_is_due_and_a_wrong_index_is_put_right(world: World) -> None:
    # Case 16.
    session = await world.attached(ttl_s=100.0)
    link, index = world.store._link, world.store._key("deadlines")  # type: ignore[attr-defined]
    await link.command("ZADD", index, 1, session.id, 1, "se-unknown")
    assert await world.store.due_sessions(10) == []
    assert await world.session_state(session.id) == "attached"
    assert float(await link.command("ZSCORE", index, session.id)) == session.expires_at
    assert await link.command("ZSCORE", index, "se-unknown") is None


async def test_a_keep_alive_that_comes_too_late_is_a_conflict_even_before_the_reaper(
    world: World, rewind: Rewind
) -> None:
    session = await world.attached(ttl_s=100.0)
    await rewind.session(session.id, 101.0)
    with pytest.raises(Conflict) as caught:
        await world.store.extend_session(session.id, 500.0)
    assert caught.value.code == "session_ended"


async def test_keep_alives_and_expiry_at_once_leave_one_winner(world: World, rewind: Rewind) -> None:
    for _ in range(10):
        session = await world.attached(ttl_s=100.0)
        await rewind.session(session.id, 99.99)
        answers = await asyncio.gather(
            *(world.store.due_sessions(10) for _ in range(3)),
            world.store.extend_session(session.id, 500.0),
            *(world.store.due_sessions(10) for _ in range(3)),
            return_exceptions=True,
        )
        (kept,) = [a for a in answers if not isinstance(a, list)]
        # Either the keep-alive held and nobody ended it, or it was refused and somebody does.
        if isinstance(kept, Conflict):
            await world.store.due_sessions(10)
            assert await world.session_state(session.id) == "ended"
        else:
            assert await world.session_state(session.id) == "attached"


@pytest.mark.parametrize("ttl_s", [0.0, -5.0, float("nan")])
async def test_a_keep_alive_needs_a_positive_time(world: World, ttl_s: float) -> None:
    session = await world.attached()
    with pytest.raises(Permanent) as caught:
        await world.store.extend_session(session.id, ttl_s)
    assert caught.value.code == "invalid_ttl"


async def test_a_keep_alive_while_waiting_changes_the_lease_to_come(world: World) -> None:
    session = (await world.claim(ttl_s=100.0)).session
    assert session is not None
    extended = await world.store.extend_session(session.id, 5.0)
    assert (extended.ttl_s, extended.expires_at, extended.state) == (5.0, None, "waiting")


async def test_waiting_ends_with_its_time_limit(world: World, rewind: Rewind) -> None:
    session = (await world.claim(wait_s=10.0)).session
    assert session is not None
    await rewind.session(session.id, 11.0)
    assert await world.store.sandbox_ready((await world.sandbox()).id, 3600.0) is None, "its time is over"
    (ended,) = await world.store.due_sessions(10)
    assert ended.end_reason == "wait_timeout"
    assert (await world.store.pool_counts(POOL)).waiting == 0


async def test_activity_moves_the_idle_time_out(world: World, rewind: Rewind) -> None:
    # Case 17: the caller learns that a command runs, and notes it as activity.
    session = await world.attached(idle_timeout_s=60.0)
    assert await world.store.idle_candidates(10) == []
    await rewind.session(session.id, 61.0)
    (idle,) = await world.store.idle_candidates(10)
    assert idle.id == session.id
    assert await world.session_state(session.id) == "attached", "only a candidate"
    await world.store.touch_session(session.id)
    assert await world.store.idle_candidates(10) == []


async def test_idle_rules_apply_from_attach_and_never_to_what_waits_or_is_unclaimed(
    world: World, rewind: Rewind
) -> None:
    # Case 21.
    await world.ready()
    session = (await world.claim(idle_timeout_s=1.0)).session
    assert session is not None and session.sandbox is not None
    waiting = (await world.claim(idle_timeout_s=1.0)).session
    assert waiting is not None
    await rewind.session(session.id, 20.0)
    await rewind.session(waiting.id, 20.0)
    assert await world.store.idle_candidates(10) == []
    attached = await world.store.bound(session.id, session.sandbox)
    assert attached.last_activity_at == attached.attached_at


async def test_activity_of_an_ended_session_changes_nothing(world: World) -> None:
    session = await world.attached(idle_timeout_s=60.0)
    ended = await world.store.end_session(session.id, "deleted", "", "k1")
    await world.store.touch_session(session.id)
    assert await world.store.get_session(session.id) == ended


async def test_a_session_can_be_ended_in_every_state_and_keeps_its_first_reason(world: World) -> None:
    # Case 18.
    waiting = (await world.claim()).session
    assert waiting is not None
    await world.store.end_session(waiting.id, "deleted", "", "k1")
    await world.ready()
    binding = (await world.claim()).session
    attached = await world.attached()
    for session in (waiting, binding, attached):
        assert session is not None
        ended = await world.store.end_session(session.id, "deleted", "by hand", "k1")
        again = await world.store.end_session(session.id, "expired", "later", "reaper")
        assert (ended.state, again.end_reason) == ("ended", "deleted")
        assert again == await world.store.get_session(session.id)
        if session.sandbox is not None:
            assert await world.state(session.sandbox) == "draining"


async def test_concurrent_ends_free_one_place(world: World) -> None:
    await world.claim()
    other = (await world.claim()).session
    assert other is not None
    await asyncio.gather(*(world.store.end_session(other.id, "deleted", "", f"k{i}") for i in range(20)))
    assert (await world.claim()).sessions_now == 2
    assert (await world.kinds()).count("session.ended") == 1


async def test_places_in_the_queue_move_up(world: World) -> None:
    sessions = [(await world.claim()).session for _ in range(3)]
    first, second, third = [s for s in sessions if s is not None]
    await world.store.end_session(second.id, "deleted", "", "k1")
    assert await world.store.queue_position(first.id) == 0
    assert await world.store.queue_position(second.id) is None
    assert await world.store.queue_position(third.id) == 1


async def test_sessions_are_listed_by_tenant_state_and_labels_newest_first(world: World) -> None:
    other = TenantId("other")
    await world.store.put_tenant(Tenant(id=other))
    ended = await world.attached(labels={"app": "x"})
    await world.store.end_session(ended.id, "deleted", "", "k1")
    attached = await world.attached(labels={"app": "x", "env": "dev"})
    waiting = (await world.claim(labels={"app": "y"})).session
    theirs = (await world.claim(tenant=other)).session
    assert waiting is not None and theirs is not None

    async def listed(*args: object) -> list[str]:
        return [s.id for s in await world.store.list_sessions(*args)]  # type: ignore[arg-type]

    assert await listed(ACME, [], {}, 10) == [waiting.id, attached.id, ended.id]
    assert await listed(None, [], {}, 10) == [theirs.id, waiting.id, attached.id, ended.id]
    assert await listed(ACME, ["attached", "binding"], {}, 10) == [attached.id]
    assert await listed(ACME, ["ended"], {}, 10) == [ended.id]
    assert await listed(ACME, [], {"app": "x"}, 10) == [attached.id, ended.id]
    assert await listed(ACME, [], {"app": "x", "env": "dev"}, 10) == [attached.id]
    assert await listed(ACME, [], {}, 2) == [waiting.id, attached.id]
    assert await listed(TenantId("nobody"), [], {}, 10) == []


async def test_ended_sessions_are_kept_for_a_time_then_forgotten_with_their_key(world: World, rewind: Rewind) -> None:
    session = await world.attached(idempotency_key="key")
    await world.store.end_session(session.id, "deleted", "", "k1")
    await world.store.due_sessions(10)
    assert (await world.claim(idempotency_key="key")).outcome == "repeat"
    await rewind.session(session.id, 86_401.0)
    await world.store.due_sessions(10)
    assert await world.store.list_sessions(None, ["ended"], {}, 10) == []
    assert (await world.claim(idempotency_key="key")).outcome == "waiting"


async def test_no_more_ended_sessions_are_kept_than_allowed(valkey_url: str, deployment: str) -> None:
    store = RedisStore(valkey_url, deployment, StoreOptions(max_ended_sessions=3, operation_timeout_s=20.0))
    world = await new_world(store)
    for _ in range(8):
        session = (await world.claim()).session
        assert session is not None
        await store.end_session(session.id, "deleted", "", "k1")
    await store.due_sessions(100)
    assert len(await store.list_sessions(None, ["ended"], {}, 100)) == 3
    await store.close()


async def test_the_queue_of_one_pool_is_not_touched_by_another(world: World) -> None:
    await world.put_pool("other")
    here, there = (await world.claim()).session, (await world.claim(pool=pool_key(ACME, "other"))).session
    assert here is not None and there is not None
    served = await world.store.sandbox_ready((await world.sandbox(pool=pool_key(ACME, "other"))).id, 3600.0)
    assert served is not None and served.id == there.id
    assert await world.store.queue_position(here.id) == 0
