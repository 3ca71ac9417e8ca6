"""What a tenant can make without end must have an end: names are limited, and unused refs are forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.errors import Conflict
from controlplane.ids import VersionId, lineage_key, pool_key, template_key
from controlplane.model.template import Pool, Template
from controlplane.store.redis_store import RedisStore, StoreOptions
from tests.provisioning.plant import Plant
from tests.store.world import ACME, DEMO, POOL, World

FEW = StoreOptions(max_pools_per_tenant=3, max_templates_per_tenant=2, max_lineages_per_template=2)


@pytest.fixture
async def tight(valkey_url: str, store: RedisStore, world: World, deployment: str) -> World:
    """The same state, with room for 3 pools, 2 templates and 2 refs; pool demo and template demo are there."""
    return World(RedisStore(valkey_url, deployment, FEW), world.fence)


async def test_a_tenant_has_only_so_many_pools_one_off_ones_included(tight: World) -> None:
    for number in range(2):
        await tight.put_pool(f"more-{number}", adhoc=bool(number))
    with pytest.raises(Conflict) as refused:
        await tight.put_pool("too-many", adhoc=True)
    assert refused.value.code == "too_many_pools"
    await tight.put_pool("more-0", min_ready=0)
    await tight.store.delete_pool(pool_key(ACME, "more-0"))
    assert await tight.store.remove_pool(pool_key(ACME, "more-0"), tight.fence)
    await tight.put_pool("again")
    await tight.store.close()  # type: ignore[attr-defined]


async def test_a_tenant_has_only_so_many_templates(tight: World) -> None:
    def named(name: str) -> Template:
        return Template(key=template_key(ACME, name), tenant=ACME, name=name)

    await tight.store.put_template(named("second"))
    with pytest.raises(Conflict) as refused:
        await tight.store.put_template(named("third"))
    assert refused.value.code == "too_many_templates"
    await tight.store.put_template(replace(named("second"), env={"A": "1"}))
    await tight.store.delete_template(template_key(ACME, "second"))
    await tight.store.put_template(named("third"))
    await tight.store.close()  # type: ignore[attr-defined]


async def test_only_so_many_refs_can_be_asked_for_by_hand(tight: World) -> None:
    await tight.store.reset_lineage(lineage_key(DEMO, "one"))
    with pytest.raises(Conflict) as refused:
        await tight.store.reset_lineage(lineage_key(DEMO, "two"))
    assert refused.value.code == "too_many_refs"
    await tight.store.reset_lineage(lineage_key(DEMO, "one"))
    await tight.store.close()  # type: ignore[attr-defined]


async def test_a_ref_is_forgotten_only_when_nothing_uses_or_builds_it(world: World) -> None:
    store, key = world.store, lineage_key(DEMO, "branch")
    assert not await store.forget_lineage(lineage_key(DEMO, None))
    running = await world.start_build(ref="branch")
    assert not await store.forget_lineage(key)
    await store.finish_build(running, world.version(running, VersionId("v-branch")), 0.0)
    await world.put_pool("branch", ref="branch", adhoc=True)
    assert not await store.forget_lineage(key)
    await store.delete_pool(pool_key(ACME, "branch"))
    assert await store.remove_pool(pool_key(ACME, "branch"), world.fence)
    assert await store.forget_lineage(key)
    assert await store.forget_lineage(key)
    assert await store.get_lineage(key) is None
    assert (await store.get_version(VersionId("v-branch"))).superseded_at is not None
    assert (await store.get_pool(POOL)).key == POOL


async def test_the_image_of_a_ref_that_nobody_names_any_more_is_collected(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path, keep_superseded_s=0.0, young_s=0.0, keep_unused_ref_s=0.0)
    pool = await plant.add_demo(min_ready=1)
    template = (await store.get_pool(pool)).template
    one_off = await store.put_pool(
        Pool(key=pool_key(ACME, "adhoc-1"), tenant=ACME, name="adhoc-1", template=template, ref="branch", adhoc=True)
    )
    await plant.settle()
    lineage = await store.get_lineage(lineage_key(template, "branch"))
    assert lineage is not None and lineage.current is not None
    image = (await store.get_version(lineage.current)).image
    await plant.garbage.collect()
    assert image in {found.image for found in await store.list_versions()}
    await store.delete_pool(one_off.key)
    await plant.settle()
    await plant.garbage.collect()
    assert image not in {found.ref for found in await plant.runtime.list_images()}
    assert await store.get_lineage(lineage.key) is None
