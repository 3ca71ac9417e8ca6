"""One leader at a time, and tokens that stop those who were replaced."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controlplane.errors import Conflict, Permanent
from controlplane.ids import new_build_id, new_sandbox_id
from controlplane.model.template import Build
from controlplane.store.port import Leadership, NewSandbox
from controlplane.store.redis_store import RedisStore
from tests.store.rewind import Rewind
from tests.store.world import ACME, DEMO, LINEAGE, POOL, World, until


async def test_of_many_who_ask_one_leads(store: RedisStore) -> None:
    answers = await asyncio.gather(*(store.lead(f"p{i}", 30.0) for i in range(20)))
    assert sum(a is not None for a in answers) == 1


async def test_renewing_keeps_the_token_and_a_new_term_raises_it(store: RedisStore) -> None:
    first = await store.lead("a", 30.0)
    assert first is not None
    assert await store.lead("a", 30.0) == first
    assert await store.lead("b", 30.0) is None
    await store.resign(first)
    second = await store.lead("b", 30.0)
    assert second is not None and second.fence == first.fence + 1


async def test_a_lease_that_is_not_renewed_ends_and_another_leads(store: RedisStore) -> None:
    first = await store.lead("a", 0.05)
    assert first is not None
    second: Leadership = await until(lambda: store.lead("b", 30.0))
    assert second.fence > first.fence
    assert await store.lead("a", 30.0) is None


async def test_only_the_leader_of_the_present_term_can_resign(store: RedisStore) -> None:
    first = await store.lead("a", 30.0)
    assert first is not None
    await store.resign(Leadership(holder="b", fence=first.fence, ttl_s=1.0))
    await store.resign(Leadership(holder="a", fence=first.fence - 1, ttl_s=1.0))
    assert await store.lead("b", 30.0) is None
    await store.resign(first)
    await store.resign(first)
    assert await store.lead("b", 30.0) is not None


async def test_a_lease_needs_a_holder_and_a_time(store: RedisStore) -> None:
    for holder, ttl_s in (("a", 0.0), ("", 1.0), ("a", -1.0)):
        with pytest.raises(Permanent) as caught:
            await store.lead(holder, ttl_s)
        assert caught.value.code == "invalid_lease"


async def test_tokens_rise_even_when_all_state_was_lost(store: RedisStore, rewind: Rewind) -> None:
    first = await store.lead("a", 30.0)
    assert first is not None
    await rewind.forget_everything()
    second = await store.lead("b", 30.0)
    assert second is not None and second.fence > first.fence


async def test_a_replaced_leader_can_change_nothing(world: World) -> None:
    # Case 8: a plan made by a leader that was replaced meanwhile.
    sandbox = await world.sandbox()
    ready = await world.ready()
    stale = world.fence
    await world.store.resign(Leadership(holder="test", fence=stale, ttl_s=600.0))
    new = await world.store.lead("other", 600.0)
    assert new is not None
    build = Build(id=new_build_id(), lineage=LINEAGE, template=DEMO, tenant=ACME, revision=1)
    new_sandbox = NewSandbox(sandbox=replace(sandbox, id=new_sandbox_id()), count_limit=50)
    for call in (
        world.store.create_sandbox(new_sandbox, stale),
        world.store.drain_sandbox(ready, "shrink", "scheduler", stale, True),
        world.store.create_build(build, stale),
        world.store.remove_pool(POOL, stale),
    ):
        with pytest.raises(Conflict) as caught:
            await call
        assert caught.value.code == "fenced"
    assert await world.state(ready) == "ready"
    assert await world.store.create_sandbox(new_sandbox, new.fence)
