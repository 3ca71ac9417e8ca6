"""The claim, as the port promises it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from controlplane.errors import Conflict, NotFound, Permanent
from controlplane.ids import SessionId, TenantId, new_session_id, pool_key
from controlplane.model.resources import GIB, Resources
from controlplane.model.tenancy import Tenant
from tests.store.world import ACME, POOL, V1, V2, World


async def test_a_claim_takes_the_newest_ready_sandbox(world: World) -> None:
    await world.ready()
    newest = await world.ready()
    result = await world.claim(labels={"a": "b"}, env={"TOKEN": "x"})
    assert result.outcome == "claimed"
    assert result.session is not None
    assert (result.session.state, result.session.sandbox, result.session.door) == ("binding", newest, f"sim:{newest}")
    assert (result.session.start, result.session.start_reason) == ("warm", "ready_in_pool")
    assert (result.session.version, result.session.labels, result.session.env) == (V1, {"a": "b"}, {"TOKEN": "x"})
    assert (result.position, result.sessions_now) == (None, 1)
    sandbox = await world.store.get_sandbox(newest)
    assert (sandbox.state, sandbox.session, sandbox.deadline_at) == ("claimed", result.session.id, None)


async def test_an_empty_pool_queues_the_claim_and_says_why(world: World) -> None:
    result = await world.claim()
    assert (result.outcome, result.position) == ("waiting", 0)
    assert result.session is not None
    assert (result.session.state, result.session.start) == ("waiting", "cold")
    assert result.session.start_reason == "pool_empty"
    assert (await world.claim()).position == 1


async def test_the_callers_reason_for_a_miss_is_recorded(world: World) -> None:
    session = (await world.claim(cold_reason="no_pool")).session
    assert session is not None and session.start_reason == "no_pool"


async def test_a_claim_before_the_first_version_waits_for_the_build(world: World) -> None:
    await world.put_pool("other", ref="dev")
    session = (await world.claim(pool=pool_key(ACME, "other"))).session
    assert session is not None and session.start_reason == "building"


async def test_concurrent_claims_never_share_a_sandbox(world: World) -> None:
    # Cases 1 and 3: 200 at once on 50 ready ones; the losers wait, none fails.
    await world.store.put_tenant(Tenant(id=ACME, max_sessions=1000))
    ready = {await world.ready() for _ in range(50)}
    results = await asyncio.gather(*(world.claim() for _ in range(200)))
    outcomes = Counter(result.outcome for result in results)
    assert outcomes == {"claimed": 50, "waiting": 150}
    taken = [r.session.sandbox for r in results if r.session is not None and r.outcome == "claimed"]
    assert set(taken) == ready
    assert sorted(r.position for r in results if r.position is not None) != []
    places = [await world.store.queue_position(r.session.id) for r in results if r.outcome == "waiting" and r.session]
    assert sorted(p for p in places if p is not None) == list(range(150))


async def test_the_same_idempotency_key_returns_the_same_session(world: World) -> None:
    # Case 2: the first answer was lost; case 7: the repeat makes nothing new.
    await world.ready()
    await world.ready()
    first = await world.claim(idempotency_key="key", request_digest="d")
    again = await world.claim(idempotency_key="key", request_digest="d")
    assert again.outcome == "repeat"
    assert again.session == first.session
    assert (await world.store.pool_counts(POOL)).ready == 1


async def test_concurrent_repeats_make_one_session(world: World) -> None:
    await world.ready()
    await world.ready()
    results = await asyncio.gather(*(world.claim(idempotency_key="key", request_digest="d") for _ in range(20)))
    assert Counter(r.outcome for r in results) == {"claimed": 1, "repeat": 19}
    assert len({r.session.id for r in results if r.session}) == 1


async def test_a_repeat_of_a_waiting_session_tells_its_place(world: World) -> None:
    await world.claim()
    await world.claim(idempotency_key="key")
    again = await world.claim(idempotency_key="key")
    assert (again.outcome, again.position) == ("repeat", 1)


async def test_a_repeat_after_the_end_returns_the_ended_session(world: World) -> None:
    first = (await world.claim(idempotency_key="key")).session
    assert first is not None
    await world.store.end_session(first.id, "deleted", "", "k1")
    again = await world.claim(idempotency_key="key")
    assert again.outcome == "repeat"
    assert again.session is not None and again.session.state == "ended"


async def test_an_idempotency_key_of_another_request_is_refused(world: World) -> None:
    await world.claim(idempotency_key="key", request_digest="one")
    with pytest.raises(Conflict) as caught:
        await world.claim(idempotency_key="key", request_digest="two")
    assert caught.value.code == "idempotency_key_reused"


async def test_idempotency_keys_of_tenants_are_apart(world: World) -> None:
    other = TenantId("other")
    await world.store.put_tenant(Tenant(id=other))
    mine = await world.claim(idempotency_key="key")
    theirs = await world.claim(idempotency_key="key", tenant=other)
    assert theirs.outcome == "waiting"
    assert mine.session and theirs.session and mine.session.id != theirs.session.id


async def test_the_same_session_id_sent_again_is_a_repeat(world: World) -> None:
    await world.ready()
    key = new_session_id()
    await world.claim(session=key)
    assert (await world.claim(session=key)).outcome == "repeat"


async def test_another_tenant_cannot_learn_of_a_session_by_reusing_its_id(world: World) -> None:
    other = TenantId("other")
    await world.store.put_tenant(Tenant(id=other))
    await world.claim(session=SessionId("se-1"))
    with pytest.raises(Conflict):
        await world.claim(session=SessionId("se-1"), tenant=other)


async def test_a_sandbox_close_to_its_end_is_passed_over(world: World) -> None:
    # Case 6.
    await world.ready(max_age_s=30.0)
    assert (await world.claim(min_remaining_s=60.0)).outcome == "waiting"
    assert (await world.claim(min_remaining_s=10.0)).outcome == "claimed"


async def test_an_older_sandbox_with_time_left_is_found_behind_newer_ones_without(world: World) -> None:
    good = await world.ready(max_age_s=3600.0)
    for _ in range(40):
        await world.ready(max_age_s=30.0)
    session = (await world.claim()).session
    assert session is not None and session.sandbox == good


async def test_what_is_listed_as_ready_but_is_not_is_skipped_and_struck_off(world: World) -> None:
    good = await world.ready()
    taken = await world.attached()
    link, index = world.store._link, world.store._key("ready", POOL)  # type: ignore[attr-defined]
    await link.command("ZADD", index, 9e9, f"{V1}|{taken.sandbox}", 9e9, f"{V1}|sb-unknown")
    session = (await world.claim()).session
    assert session is not None and session.sandbox == good
    assert await link.command("ZCARD", index) == 0


async def test_the_current_version_is_preferred_to_a_newer_sandbox_of_an_old_one(world: World) -> None:
    await world.publish(V2)
    current = await world.ready(version=V2)
    old = await world.ready(version=V1)
    first, second = (await world.claim()).session, (await world.claim()).session
    assert first is not None and first.sandbox == current
    assert second is not None and second.sandbox == old


async def test_without_consent_an_old_version_is_not_handed_out(world: World) -> None:
    await world.ready()
    await world.publish(V2)
    session = (await world.claim(allow_superseded=False)).session
    assert session is not None
    assert (session.state, session.start_reason) == ("waiting", "version_changed")


async def test_a_strict_template_never_hands_out_an_old_version(world: World) -> None:
    # Case 10.
    await world.put_template(strict=True)
    await world.ready()
    await world.publish(V2)
    result = await world.claim()
    assert result.session is not None and result.session.start_reason == "version_changed"


async def test_a_strict_template_hands_nothing_out_between_its_change_and_the_new_version(world: World) -> None:
    await world.put_template(strict=True)
    await world.ready()
    await world.put_template(strict=True, env={"A": "1"})
    waiting = (await world.claim()).session
    assert waiting is not None and waiting.state == "waiting"
    await world.publish(V2)
    fresh = await world.ready(version=V2)
    assert (await world.store.get_session(waiting.id)).sandbox == fresh


async def test_sandboxes_of_another_size_come_last(world: World) -> None:
    small = await world.ready()
    await world.put_pool(resources=Resources(memory_bytes=2 * GIB))
    large = await world.ready()
    await world.store.get_sandbox(small)
    first, second = (await world.claim()).session, (await world.claim()).session
    assert first is not None and first.sandbox == large
    assert second is not None and second.sandbox == small


async def test_a_pool_that_changed_its_template_never_hands_out_what_it_made_before(world: World) -> None:
    await world.ready()
    await world.publish(V2, ref="dev")
    await world.put_pool(ref="dev")
    session = (await world.claim()).session
    assert session is not None and session.start_reason == "version_changed"


async def test_the_quota_is_checked_with_the_claim(world: World) -> None:
    # Case 22.
    await world.store.put_tenant(Tenant(id=ACME, max_sessions=3))
    for _ in range(5):
        await world.ready()
    results = await asyncio.gather(*(world.claim() for _ in range(10)))
    assert Counter(r.outcome for r in results) == {"claimed": 3, "over_quota": 7}
    assert {r.sessions_now for r in results if r.outcome == "over_quota"} == {3}
    assert (await world.store.pool_counts(POOL)).ready == 2


async def test_the_end_of_a_session_frees_its_place_in_the_quota_at_once(world: World) -> None:
    await world.store.put_tenant(Tenant(id=ACME, max_sessions=1))
    first = (await world.claim()).session
    assert first is not None
    assert (await world.claim()).outcome == "over_quota"
    await world.store.end_session(first.id, "deleted", "", "k1")
    assert (await world.claim()).outcome == "waiting"


async def test_a_failed_sandbox_frees_the_place_of_its_session(world: World) -> None:
    await world.store.put_tenant(Tenant(id=ACME, max_sessions=1))
    session = await world.attached()
    assert session.sandbox is not None
    await world.store.fail_sandbox(session.sandbox, "runtime_lost", "reaper")
    assert (await world.claim()).outcome == "waiting"


async def test_a_full_queue_answers_no_capacity_and_makes_nothing(world: World) -> None:
    await world.claim(max_waiting=2)
    await world.claim(max_waiting=2)
    result = await world.claim(max_waiting=2, idempotency_key="key")
    assert (result.outcome, result.session, result.sessions_now) == ("no_capacity", None, 2)
    # Nothing was kept, so the same key may succeed later.
    await world.ready()
    await world.ready()
    await world.ready()
    assert (await world.claim(max_waiting=2, idempotency_key="key")).outcome == "claimed"


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_lease_that_is_no_positive_time_is_refused(world: World, ttl_s: float) -> None:
    with pytest.raises(Permanent) as caught:
        await world.claim(ttl_s=ttl_s)
    assert caught.value.code == "invalid_ttl"


async def test_a_claim_on_a_missing_or_deleted_pool_finds_none(world: World) -> None:
    with pytest.raises(NotFound) as caught:
        await world.claim(pool=pool_key(ACME, "none"))
    assert caught.value.code == "pool_not_found"
    await world.store.delete_pool(POOL)
    with pytest.raises(NotFound):
        await world.claim()


async def test_a_claim_of_an_unknown_tenant_is_refused(world: World) -> None:
    with pytest.raises(NotFound) as caught:
        await world.claim(tenant=TenantId("nobody"))
    assert caught.value.code == "tenant_not_found"


async def test_a_hit_wakes_the_scheduler_once_it_is_bound(world: World) -> None:
    await world.ready()
    while await world.store.wait_wake(0.0):
        pass
    session = (await world.claim()).session
    assert session is not None and session.sandbox is not None
    assert not await world.store.wait_wake(0.0)
    await world.store.bound(session.id, session.sandbox)
    assert await world.store.wait_wake(0.0)


async def test_a_miss_wakes_the_scheduler_and_is_the_pools_last_use(world: World) -> None:
    while await world.store.wait_wake(0.0):
        pass
    await world.claim()
    assert await world.store.wait_wake(0.0)
    observed = await world.store.observe()
    assert observed.last_used_at[POOL] == pytest.approx(observed.now, abs=30.0)
    assert observed.waiting == {POOL: 1}


async def test_hostile_texts_survive_and_numbers_that_would_not_are_refused(world: World) -> None:
    odd = {"k\n\"'\\": "\x00 é 😀 {}[] %s", "": ""}
    result = await world.claim(labels=odd, idempotency_key="a:b\n*", env={"X": "\x7f\u2028"})
    assert result.session is not None and result.session.labels == odd
    assert (await world.store.get_session(result.session.id)).env == {"X": "\x7f\u2028"}
    with pytest.raises(Permanent):
        await world.claim(labels={"k": "\ud800"})
    with pytest.raises(Permanent):
        await world.claim(wait_s=float("nan"))
    with pytest.raises(Permanent):
        await world.put_pool(resources=Resources(memory_bytes=10**18))
