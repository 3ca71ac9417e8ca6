"""What people do to pools: put, share, pin, delete, explain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.errors import NotFound, Permanent
from controlplane.ids import PoolKey, TenantId, pool_key, template_key
from controlplane.model.resources import Resources
from controlplane.model.template import Pool
from controlplane.model.tenancy import Tenant
from controlplane.planning.explain import decode_decision
from controlplane.pool import PoolService
from tests.provisioning.plant import ACME, Plant

POOL = Pool(key=pool_key(ACME, "demo"), tenant=ACME, name="demo", template=template_key(ACME, "demo"))


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("invalid_pool", {"min_ready": -1}),
        ("invalid_pool", {"max_total": 0}),
        ("invalid_pool", {"min_ready": 11, "max_total": 10}),
        ("invalid_pool", {"max_total": 10_000_000}),
        ("invalid_ref", {"ref": "--exec=id"}),
        ("invalid_ref", {"ref": "a b"}),
        ("invalid_resources", {"resources": Resources(memory_bytes=1)}),
        ("invalid_name", {"name": "other"}),
    ],
)
async def test_a_pool_that_cannot_be_is_refused(plant: Plant, code: str, changes: dict[str, Any]) -> None:
    await plant.add_template()
    with pytest.raises(Permanent) as caught:
        await PoolService(plant.store).put(replace(POOL, **changes))
    assert caught.value.code == code


async def test_another_tenants_template_can_be_pooled_only_when_it_is_shared(plant: Plant) -> None:
    service = PoolService(plant.store)
    key = await plant.add_template()
    other = TenantId("other")
    await plant.store.put_tenant(Tenant(id=other))
    theirs = replace(POOL, key=pool_key(other, "demo"), tenant=other)
    with pytest.raises(NotFound):
        await service.put(theirs)
    with pytest.raises(NotFound):
        await service.put(replace(POOL, template=template_key(ACME, "nothing")))
    await plant.store.put_template(replace(await plant.store.get_template(key), shared_with=("other",)))
    assert (await service.put(theirs)).template == key
    assert [pool.key for pool in await service.list(tenant=other)] == ["other/demo"]
    assert await service.list(tenant=ACME) == []


async def test_an_operators_pin_outlives_a_tenants_change(plant: Plant) -> None:
    service = PoolService(plant.store)
    await plant.add_template()
    made = await service.put(POOL)
    assert (await service.pin(made.key, 2)).pinned_ready == 2
    changed = await service.put(replace(POOL, min_ready=3, pinned_ready=7))
    assert (changed.pinned_ready, changed.min_ready, changed.uid) == (2, 3, made.uid)
    assert (await service.pin(made.key, None)).pinned_ready is None
    for ready in (-1, 11):
        with pytest.raises(Permanent):
            await service.pin(made.key, ready)


async def test_a_pool_is_deleted_once_its_sessions_are_over_and_deleting_again_is_no_error(plant: Plant) -> None:
    service = PoolService(plant.store)
    pool = await plant.add_demo(min_ready=2)
    session = await plant.attach(pool)
    await service.delete(pool)
    await plant.settle()
    assert (await plant.store.get_session(session.id)).state == "attached"
    assert (await service.get(pool)).deleting
    await plant.store.end_session(session.id, "deleted", "", "test")
    await plant.settle()
    with pytest.raises(NotFound):
        await service.get(pool)
    await service.delete(pool)
    await service.delete(PoolKey("acme/never-was"))


async def test_a_pool_that_the_scheduler_has_not_seen_has_no_decision_yet(plant: Plant) -> None:
    await plant.add_template()
    service = PoolService(plant.store)
    await service.put(POOL)
    explained = await service.explain(POOL.key)
    assert (explained.decision, explained.at, explained.lineage) == (None, None, None)
    with pytest.raises(NotFound):
        await service.explain(PoolKey("acme/never-was"))


def test_a_decision_of_another_version_is_passed_over() -> None:
    assert decode_decision('{"of": "another time"}') == (None, None)
