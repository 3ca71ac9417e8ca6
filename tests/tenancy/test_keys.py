"""Keys and callers, without HTTP."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clock import ManualClock
from controlplane.errors import Denied, Permanent
from controlplane.ids import ApiKeyId, TenantId
from controlplane.store.redis_store import RedisStore
from controlplane.tenancy.keys import mint_key, parse_key, pepper, proves
from controlplane.tenancy.service import RECALL_S, Caller, TenancyService

ACME = TenantId("acme")
PEPPER = pepper(b"secret")


def test_a_minted_key_has_the_documented_form_and_proves_itself() -> None:
    for _ in range(200):  # Secrets may hold the separator.
        record, text = mint_key(PEPPER, ACME, "platform", "", 1.0)
        parsed = parse_key(text)
        assert parsed is not None
        key_id, secret = parsed
        assert (key_id, len(key_id), len(secret)) == (record.id, 16, 43)
        assert proves(PEPPER, record, secret)
        assert not proves(pepper(b"another deployment"), record, secret)
        assert secret not in repr(record)


@given(st.text())
def test_no_other_text_is_taken_for_a_key(text: str) -> None:
    assert parse_key(text) is None


async def test_every_way_of_not_being_valid_answers_the_same(store: RedisStore) -> None:
    service = TenancyService(store, b"secret", ManualClock())
    record, text = await service.create_key(ACME, "platform", "note")
    assert (await service.authenticate(text)).tenant == ACME
    other = await TenancyService(store, b"other", ManualClock()).create_key(ACME, "platform")
    wrong = [text[:-1] + ("A" if text[-1] != "A" else "B"), other[1], f"wp_{'0' * 16}_{'A' * 43}", "", text + "x"]
    await service.revoke_key((await service.create_key(ACME, "ops"))[0].id)
    errors = []
    for attempt in wrong:
        with pytest.raises(Denied) as denied:
            await service.authenticate(attempt)
        errors.append((denied.value.code, denied.value.message, denied.value.hint))
    assert len(set(errors)) == 1
    await service.revoke_key(record.id)
    with pytest.raises(Denied):
        await service.authenticate(text)


async def test_a_key_makes_its_tenant_but_does_not_change_one(store: RedisStore) -> None:
    service = TenancyService(store, b"secret", ManualClock())
    await service.put_tenant(ACME, 7, None)
    await service.create_key(ACME, "platform")
    await service.create_key(TenantId("new"), "platform")
    assert (await service.get_tenant(ACME)).max_sessions == 7
    assert (await store.get_tenant(TenantId("new"))).max_sessions == 1000
    with pytest.raises(Permanent):
        await service.create_key(TenantId("No/Name"), "platform")
    with pytest.raises(Permanent):
        await service.create_key(ACME, "platform", "x" * 201)


def test_only_operators_act_for_another_tenant() -> None:
    platform, ops = Caller(ACME, "platform", ApiKeyId("k")), Caller(ACME, "ops", ApiKeyId("k"))
    assert platform.acting_for(None) == platform.acting_for("acme") == ACME
    assert ops.acting_for("globex") == "globex"
    with pytest.raises(Denied):
        platform.acting_for("globex")
    with pytest.raises(Permanent):
        ops.acting_for("glo/bex")


async def test_a_lost_key_is_recorded_again_but_a_revoked_one_stays_revoked(store: RedisStore) -> None:
    service = TenancyService(store, b"secret", ManualClock())
    record, text = await service.create_key(ACME, "ops")
    assert not await service.restore_key(ACME, "ops", text)
    await service.revoke_key(record.id)
    assert not await service.restore_key(ACME, "ops", text)
    with pytest.raises(Denied):
        await service.authenticate(text)
    _, lost = mint_key(PEPPER, ACME, "ops", "", 1.0)
    assert await service.restore_key(ACME, "ops", lost)
    assert (await service.authenticate(lost)).role == "ops"
    assert not await service.restore_key(ACME, "ops", "no key")


async def test_a_recalled_key_is_read_again_after_a_while(store: RedisStore) -> None:
    clock = ManualClock()
    service = TenancyService(store, b"secret", clock)
    record, text = await service.create_key(ACME, "platform")
    assert await service.recall(text) == await service.authenticate(text)
    await service.revoke_key(record.id)
    assert (await service.recall(text)).key == record.id
    clock.advance(RECALL_S)
    with pytest.raises(Denied):
        await service.recall(text)
