"""Tenants and API keys."""

from __future__ import annotations

import pytest

from controlplane.errors import Conflict, NotFound, Permanent
from controlplane.ids import ApiKeyId, TenantId
from controlplane.model.tenancy import ApiKey, Tenant
from controlplane.store.redis_store import RedisStore

ACME = TenantId("acme")
KEY = ApiKey(id=ApiKeyId("k1"), tenant=ACME, role="platform", mac="ab" * 32, note="ci")


async def test_a_tenant_keeps_its_birthday_when_its_limits_change(store: RedisStore) -> None:
    await store.put_tenant(Tenant(id=ACME, max_sessions=3))
    first = await store.get_tenant(ACME)
    await store.put_tenant(Tenant(id=ACME, max_sessions=5, max_ttl_s=60.0))
    second = await store.get_tenant(ACME)
    assert (second.max_sessions, second.max_ttl_s, second.created_at) == (5, 60.0, first.created_at)
    assert first.created_at > 0
    assert await store.list_tenants() == [second]


async def test_impossible_limits_and_unknown_tenants_are_refused(store: RedisStore) -> None:
    with pytest.raises(Permanent) as caught:
        await store.put_tenant(Tenant(id=ACME, max_sessions=-1))
    assert caught.value.code == "invalid_tenant"
    with pytest.raises(Permanent):
        await store.put_tenant(Tenant(id=ACME, max_ttl_s=0.0))
    with pytest.raises(NotFound) as missing:
        await store.get_tenant(ACME)
    assert missing.value.code == "tenant_not_found"


async def test_a_revoked_key_is_seen_as_revoked_by_the_next_read(store: RedisStore) -> None:
    # Case 22.
    await store.put_tenant(Tenant(id=ACME))
    await store.put_api_key(KEY)
    assert (await store.get_api_key(KEY.id)).revoked_at is None
    revoked = await store.revoke_api_key(KEY.id)
    assert revoked.revoked_at is not None
    assert await store.get_api_key(KEY.id) == revoked
    assert await store.revoke_api_key(KEY.id) == revoked, "the first time stays"


async def test_a_revoked_key_cannot_be_put_back(store: RedisStore) -> None:
    await store.put_tenant(Tenant(id=ACME))
    await store.put_api_key(KEY)
    await store.revoke_api_key(KEY.id)
    with pytest.raises(Conflict) as caught:
        await store.put_api_key(KEY)
    assert caught.value.code == "api_key_revoked"


async def test_keys_belong_to_a_tenant_that_exists(store: RedisStore) -> None:
    with pytest.raises(NotFound) as caught:
        await store.put_api_key(KEY)
    assert caught.value.code == "tenant_not_found"
    for call in (store.get_api_key(KEY.id), store.revoke_api_key(KEY.id)):
        with pytest.raises(NotFound) as missing:
            await call
        assert missing.value.code == "api_key_not_found"


async def test_keys_are_listed_by_tenant(store: RedisStore) -> None:
    await store.put_tenant(Tenant(id=ACME))
    await store.put_tenant(Tenant(id=TenantId("other")))
    await store.put_api_key(KEY)
    await store.put_api_key(ApiKey(id=ApiKeyId("k2"), tenant=TenantId("other"), role="ops", mac="cd" * 32))
    assert [k.id for k in await store.list_api_keys(ACME)] == ["k1"]
    assert sorted(k.id for k in await store.list_api_keys(None)) == ["k1", "k2"]
