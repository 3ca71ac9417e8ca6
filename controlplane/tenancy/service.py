"""Callers, keys and tenants."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controlplane.clock import Clock
from controlplane.errors import Denied, NotFound, Permanent
from controlplane.ids import ApiKeyId, TenantId, check_name
from controlplane.model.tenancy import ApiKey, Role, Tenant
from controlplane.store.port import Store
from controlplane.tenancy.keys import key_record, mint_key, parse_key, pepper, proves

MAX_NOTE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request: proven by a key that was not revoked when it came in."""

    tenant: TenantId
    role: Role
    key: ApiKeyId

    def acting_for(self, tenant: str | None) -> TenantId:
        """The tenant that a request is about. None is the caller's own; another one is for operators.

        Denied ``other_tenant``."""
        if tenant is None or tenant == self.tenant:
            return self.tenant
        if self.role != "ops":
            raise Denied("other_tenant", "This key may act for its own tenant only.")
        return TenantId(check_name(tenant, "tenant"))


RECALL_S = 5.0
RECALLED_KEYS = 10_000


class TenancyService:
    """``deployment_secret``: keys made with another one prove nothing here."""

    def __init__(self, store: Store, deployment_secret: bytes, clock: Clock) -> None:
        self._store = store
        self._pepper = pepper(deployment_secret)
        self._clock = clock
        self._proven: dict[str, tuple[float, Caller]] = {}

    async def recall(self, text: str) -> Caller:
        """As ``authenticate``, but a key proven within the last ``RECALL_S`` is not read again. Only for a call whose
        own step in the store checks that the key still holds (``ClaimRequest.proven_key``): that saves a round trip
        on the path that a user waits for."""
        now = self._clock.monotonic()
        known = self._proven.get(text)
        if known is not None and now - known[0] < RECALL_S:
            return known[1]
        caller = await self.authenticate(text)
        if len(self._proven) >= RECALLED_KEYS:
            self._proven.clear()
        self._proven[text] = (now, caller)
        return caller

    async def authenticate(self, text: str) -> Caller:
        """The caller that the key's text proves, by one read of the store: a revoked key stops at once.

        Denied ``invalid_key``, the same for every way in which it is not valid."""
        parsed = parse_key(text)
        if parsed is None:
            raise _invalid_key()
        key_id, secret = parsed
        try:
            record = await self._store.get_api_key(key_id)
        except NotFound:
            raise _invalid_key() from None
        if not proves(self._pepper, record, secret) or record.revoked_at is not None:
            raise _invalid_key()
        return Caller(record.tenant, record.role, record.id)

    async def create_key(self, tenant: TenantId, role: Role, note: str = "") -> tuple[ApiKey, str]:
        """A new key and its text, which is never readable again. A tenant without limits of its own gets the
        default ones. Permanent ``invalid_name``, ``invalid_note``."""
        check_name(tenant, "tenant")
        if len(note) > MAX_NOTE_CHARS:
            raise Permanent("invalid_note", f"A note may have {MAX_NOTE_CHARS} characters; this one has {len(note)}.")
        await self._ensure_tenant(tenant)
        record, text = mint_key(self._pepper, tenant, role, note, self._clock.now())
        await self._store.put_api_key(record)
        return record, text

    async def restore_key(self, tenant: TenantId, role: Role, text: str, note: str = "") -> bool:
        """Record a key again that the store has lost; True if that was needed. Keys are revoked, never deleted,
        so one that the store does not know was made before it was emptied."""
        parsed = parse_key(text)
        if parsed is None:
            return False
        try:
            await self._store.get_api_key(parsed[0])
            return False
        except NotFound:
            await self._ensure_tenant(tenant)
            await self._store.put_api_key(key_record(self._pepper, tenant, role, note, self._clock.now(), *parsed))
            return True

    async def list_keys(self, tenant: TenantId | None) -> list[ApiKey]:
        return await self._store.list_api_keys(tenant)

    async def revoke_key(self, key: str) -> ApiKey:
        """Revoke at once; a second time changes nothing. NotFound ``key_not_found``."""
        try:
            record = await self._store.get_api_key(ApiKeyId(key))
        except NotFound:
            raise NotFound("key_not_found", f"There is no API key {key[:80]!r}.") from None
        if record.revoked_at is not None:
            return record
        return await self._store.revoke_api_key(record.id)

    async def get_tenant(self, tenant: TenantId) -> Tenant:
        """A tenant's limits; the default ones if none were ever set."""
        try:
            return await self._store.get_tenant(tenant)
        except NotFound:
            return Tenant(id=tenant)

    async def put_tenant(self, tenant: TenantId, max_sessions: int | None, max_ttl_s: float | None) -> Tenant:
        """Set limits; None keeps the present one."""
        check_name(tenant, "tenant")
        present = await self._ensure_tenant(tenant)
        changed = replace(
            present,
            max_sessions=present.max_sessions if max_sessions is None else max_sessions,
            max_ttl_s=present.max_ttl_s if max_ttl_s is None else max_ttl_s,
        )
        await self._store.put_tenant(changed)
        return changed

    async def _ensure_tenant(self, tenant: TenantId) -> Tenant:
        try:
            return await self._store.get_tenant(tenant)
        except NotFound:
            fresh = Tenant(id=tenant, created_at=self._clock.now())
            await self._store.put_tenant(fresh)
            return fresh


def _invalid_key() -> Denied:
    return Denied(
        "invalid_key",
        "The API key is missing, malformed, unknown or revoked.",
        hint="Send 'Authorization: Bearer wp_…' with a key that an operator made for you.",
    )
