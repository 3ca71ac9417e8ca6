"""Events, wake-ups of the scheduler, and totals."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.errors import Permanent
from controlplane.ids import TenantId
from controlplane.model.events import Event
from controlplane.store.redis_store import RedisStore, StoreOptions


def event(number: int, tenant: str = "acme") -> Event:
    return Event(kind="test.happened", subject=f"s{number}", tenant=tenant, actor="me", reason="why", data={"n": "é\n"})


async def test_an_event_is_read_as_it_was_appended(store: RedisStore) -> None:
    key = await store.append_event(event(1))
    (read,) = await store.read_events("0", None, 10, 0.0)
    assert (read.kind, read.subject, read.tenant, read.actor, read.reason) == (
        "test.happened", "s1", "acme", "me", "why",
    )  # fmt: skip
    assert (read.id, dict(read.data)) == (key, {"n": "é\n"})
    assert read.at == pytest.approx(await store.now(), abs=30.0)


async def test_reading_resumes_after_the_last_event_read(store: RedisStore) -> None:
    for number in range(5):
        await store.append_event(event(number))
    first = await store.read_events("0", None, 2, 0.0)
    rest = await store.read_events(first[-1].id, None, 10, 0.0)
    assert [e.subject for e in (*first, *rest)] == ["s0", "s1", "s2", "s3", "s4"]
    assert await store.read_events(rest[-1].id, None, 10, 0.0) == []


async def test_a_tenant_reads_its_own_events_only(store: RedisStore) -> None:
    for number in range(6):
        await store.append_event(event(number, tenant="acme" if number % 2 else "other"))
    await store.append_event(event(9, tenant=""))
    mine = await store.read_events("0", TenantId("acme"), 10, 0.0)
    assert [e.subject for e in mine] == ["s1", "s3", "s5"]
    assert [e.subject for e in await store.read_events("0", TenantId("acme"), 2, 0.0)] == ["s1", "s3"]


async def test_a_reader_waits_for_the_next_event_of_its_tenant(store: RedisStore) -> None:
    reading = asyncio.create_task(store.read_events("$", TenantId("acme"), 10, 30.0))
    await asyncio.sleep(0)
    while not reading.done():
        await store.append_event(event(1, tenant="other"))
        await store.append_event(event(2))
        await asyncio.wait([reading], timeout=0.01)
    assert (await reading)[0].subject == "s2"


async def test_waiting_for_events_ends_after_the_time(store: RedisStore) -> None:
    assert await store.read_events("$", None, 10, 0.05) == []
    await store.append_event(event(1, tenant="other"))
    assert await store.read_events("0", TenantId("acme"), 10, 0.05) == []


async def test_followers_see_every_event_once_and_in_order(store: RedisStore) -> None:
    await store.append_event(event(-1))
    last = await store.append_event(event(-2))

    async def follow(tenant: TenantId | None) -> list[str]:
        seen = []
        async for found in store.follow_events(last, tenant):
            seen.append(found.subject)
            if len(seen) == 200:
                break
        return seen

    async with asyncio.TaskGroup() as group:
        followers = [group.create_task(follow(t)) for t in (None, TenantId("acme"), TenantId("acme"))]
        for number in range(200):
            await store.append_event(event(number))
    for follower in followers:
        assert follower.result() == [f"s{n}" for n in range(200)]


@pytest.mark.parametrize("after", ["", "abc", "1-2-3", "-1", "+", "0; FLUSHALL", "9" * 40])
async def test_what_is_no_event_id_is_refused(store: RedisStore, after: str) -> None:
    with pytest.raises(Permanent) as caught:
        await store.read_events(after, None, 10, 0.0)
    assert caught.value.code == "invalid_event_id"


async def test_old_events_are_dropped_when_there_are_too_many(valkey_url: str, deployment: str) -> None:
    store = RedisStore(valkey_url, deployment, StoreOptions(max_events=100, operation_timeout_s=20.0))
    await store.open()
    for number in range(1000):
        await store.append_event(event(number))
    kept = await store.read_events("0", None, 10_000, 0.0)
    assert 100 <= len(kept) < 500
    assert kept[-1].subject == "s999"
    await store.close()


async def test_wake_ups_coalesce(store: RedisStore) -> None:
    for _ in range(5):
        await store.wake()
    assert await store.wait_wake(0.0)
    assert not await store.wait_wake(0.0)
    assert not await store.wait_wake(0.02)


async def test_a_wake_up_ends_the_wait(store: RedisStore) -> None:
    waiting = asyncio.create_task(store.wait_wake(30.0))
    await asyncio.sleep(0)
    await store.wake()
    assert await asyncio.wait_for(waiting, 20.0)


async def test_totals_are_shared_between_processes(store: RedisStore, valkey_url: str, deployment: str) -> None:
    other = RedisStore(valkey_url, deployment, StoreOptions(operation_timeout_s=20.0))
    await asyncio.gather(*(s.count("claims|warm") for s in (store, other) for _ in range(10)))
    await other.count("seconds", 1.25)
    assert await store.counters() == {"claims|warm": 20.0, "seconds": 1.25}
    await other.close()
