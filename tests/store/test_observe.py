"""The scheduler's view."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controlplane.errors import Permanent
from controlplane.ids import new_sandbox_id, pool_key
from controlplane.store.redis_store import RedisStore
from tests.store.world import ACME, LINEAGE, POOL, V1, World


async def test_an_empty_store_is_an_empty_view(store: RedisStore) -> None:
    observed = await store.observe()
    assert (observed.pools, observed.sandboxes, dict(observed.lineages)) == ((), (), {})
    assert observed.now == pytest.approx(await store.now(), abs=30.0)


async def test_the_view_holds_everything_a_plan_needs(world: World) -> None:
    await world.put_pool("other", ref="dev")
    ready, building = await world.ready(), (await world.sandbox()).id
    session = await world.attached()
    await world.claim(pool=pool_key(ACME, "other"))
    observed = await world.store.observe()
    assert {p.key for p in observed.pools} == {POOL, pool_key(ACME, "other")}
    assert {s.id: s.state for s in observed.sandboxes} == {
        ready: "ready", building: "building", session.sandbox: "claimed",
    }  # fmt: skip
    assert observed.lineages[LINEAGE].current == V1
    assert observed.revisions == {LINEAGE: 1, "acme/demo@dev": 1}
    assert observed.waiting == {pool_key(ACME, "other"): 1}
    assert set(observed.last_used_at) == {POOL, pool_key(ACME, "other")}
    assert (observed.strict, observed.building_lineages) == (frozenset(), frozenset())


async def test_the_view_is_of_one_moment(world: World) -> None:
    for _ in range(20):
        await world.ready()

    async def change() -> None:
        for _ in range(20):
            session = (await world.claim()).session
            assert session is not None
            await world.store.end_session(session.id, "deleted", "", "k1")

    changing = asyncio.create_task(change())
    while not changing.done():
        observed = await world.store.observe()
        assert len(observed.sandboxes) == 20
        assert observed.waiting == {}
    await changing


async def test_one_unreadable_record_is_named(world: World) -> None:
    link = world.store._link  # type: ignore[attr-defined]
    await world.sandbox()
    key = world.store._key("sandboxes")  # type: ignore[attr-defined]
    await link.command("HSET", key, "sb-broken", '{"id": 3}')
    with pytest.raises(Permanent) as caught:
        await world.store.observe()
    assert caught.value.code == "record_unreadable"
    assert '"id": 3' in caught.value.message
    await link.command("HDEL", key, "sb-broken")


async def test_ten_thousand_sandboxes_are_read_whole(world: World) -> None:
    await world.put_pool(max_total=20_000)
    model = replace(await world.sandbox(), session=None)
    for start in range(0, 10_000, 1000):
        sandboxes = [replace(model, id=new_sandbox_id()) for _ in range(start, start + 1000)]
        await asyncio.gather(*(world.store.adopt(s, None) for s in sandboxes))
    assert len((await world.store.observe()).sandboxes) == 10_001
    assert (await world.store.pool_counts(POOL)).draining == 10_000
