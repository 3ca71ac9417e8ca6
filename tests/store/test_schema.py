"""The schema version, and the way from an older one."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.errors import Permanent
from controlplane.model.tenancy import Tenant
from controlplane.store.redis_store import RedisStore, StoreOptions
from controlplane.store.schema import MIGRATIONS, SCHEMA_VERSION, Migration
from tests.store.rewind import Rewind
from tests.store.world import ACME, new_world

# Each step notes that it ran, so that order and number are seen.
NOTE = "redis.call('RPUSH', PREFIX .. 'notes', '{}')"
STEPS = tuple(Migration(start=n, lua=NOTE.format(n)) for n in (1, 2, 3))


def at_version(url: str, deployment: str, version: int, steps: tuple[Migration, ...] = STEPS) -> RedisStore:
    options = StoreOptions(operation_timeout_s=20.0)
    return RedisStore(url, deployment, options, schema_version=version, migrations=steps)


async def notes(store: RedisStore) -> list[bytes]:
    found: list[bytes] = await store._link.command("LRANGE", store._key("notes"), 0, -1)
    return found


async def test_a_new_state_gets_the_present_version_and_opening_again_changes_nothing(
    valkey_url: str, deployment: str
) -> None:
    store = RedisStore(valkey_url, deployment)
    assert await store.ensure_schema()
    assert not await store.ensure_schema()
    await store.open()
    assert await store._link.command("GET", store._key("schema")) == str(SCHEMA_VERSION).encode()
    await store.close()


async def test_every_released_version_has_a_step_to_the_next() -> None:
    assert [m.start for m in MIGRATIONS] == list(range(1, SCHEMA_VERSION))


async def test_steps_run_in_order_and_once_however_many_open(valkey_url: str, deployment: str) -> None:
    old = at_version(valkey_url, deployment, 1)
    await old.open()
    stores = [at_version(valkey_url, deployment, 4) for _ in range(10)]
    await asyncio.gather(*(store.open() for store in stores))
    assert await notes(stores[0]) == [b"1", b"2", b"3"]
    for store in (old, *stores):
        await store.close()


async def test_data_is_kept_and_rewritten_by_a_step(valkey_url: str, deployment: str) -> None:
    old = at_version(valkey_url, deployment, 1)
    await old.open()
    await old.put_tenant(Tenant(id=ACME, max_sessions=7))
    step = Migration(
        start=1,
        lua="""
        local tenants = redis.call('HGETALL', PREFIX .. 'tenants')
        for i = 1, #tenants, 2 do
          local tenant = cjson.decode(tenants[i + 1])
          tenant.max_sessions = tenant.max_sessions * 10
          redis.call('HSET', PREFIX .. 'tenants', tenants[i], cjson.encode(tenant))
        end
        """,
    )
    new = at_version(valkey_url, deployment, 2, (step,))
    await new.open()
    assert (await new.get_tenant(ACME)).max_sessions == 70
    await old.close()
    await new.close()


async def test_a_process_of_an_older_version_is_stopped_by_the_migration(valkey_url: str, deployment: str) -> None:
    old = at_version(valkey_url, deployment, 1)
    await old.open()
    new = at_version(valkey_url, deployment, 2)
    await new.open()
    with pytest.raises(Permanent) as caught:
        await old.put_tenant(Tenant(id=ACME))
    assert caught.value.code == "schema_changed"
    await old.close()
    await new.close()


async def test_a_later_version_is_refused(valkey_url: str, deployment: str) -> None:
    later = at_version(valkey_url, deployment, 9)
    await later.open()
    store = RedisStore(valkey_url, deployment)
    with pytest.raises(Permanent) as caught:
        await store.open()
    assert caught.value.code == "schema_too_new"
    await later.close()
    await store.close()


async def test_data_of_an_unknown_layout_is_refused_not_overwritten(
    store: RedisStore, valkey_url: str, deployment: str
) -> None:
    await new_world(store)
    await store._link.command("DEL", store._key("schema"))
    with pytest.raises(Permanent) as caught:
        await store.open()
    assert caught.value.code == "schema_unknown"
    assert await store.list_pools() != []
    adopted = at_version(valkey_url, deployment, 1, (Migration(start=0, lua=NOTE.format(0)),))
    await adopted.open()
    assert await notes(adopted) == [b"0"]
    await adopted.close()


async def test_a_step_that_fails_leaves_the_version_where_it_was(valkey_url: str, deployment: str) -> None:
    old = at_version(valkey_url, deployment, 1)
    await old.open()
    broken = at_version(valkey_url, deployment, 2, (Migration(start=1, lua="error('no')"),))
    with pytest.raises(Permanent) as caught:
        await broken.open()
    assert caught.value.code == "store_error"
    await old.put_tenant(Tenant(id=ACME))
    await old.close()
    await broken.close()


async def test_an_emptied_store_is_made_anew_by_the_next_change(store: RedisStore, rewind: Rewind) -> None:
    await new_world(store)
    await rewind.forget_everything()
    await store.put_tenant(Tenant(id=ACME))
    assert not await store.ensure_schema()
    world = await new_world(store)
    await world.ready()
    assert (await world.claim()).outcome == "claimed"
