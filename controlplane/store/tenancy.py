"""Tenants and API keys."""

from __future__ import annotations

from controlplane.errors import Permanent
from controlplane.ids import ApiKeyId, TenantId
from controlplane.model.tenancy import ApiKey, Tenant
from controlplane.store.codec import decode, encode
from controlplane.store.parts import StorePart


class Tenancy(StorePart):
    async def put_tenant(self, tenant: Tenant) -> None:
        if tenant.max_sessions < 0 or tenant.max_ttl_s <= 0:
            raise Permanent(
                "invalid_tenant",
                f"Limits of {tenant.max_sessions} sessions of {tenant.max_ttl_s} s are not possible.",
                hint="max_sessions must be 0 or more, max_ttl_s more than 0.",
            )
        await self._link.run("put_tenant", {}, encode(tenant))

    async def get_tenant(self, tenant: TenantId) -> Tenant:
        return await self._need(Tenant, "tenants", tenant, "tenant")

    async def list_tenants(self) -> list[Tenant]:
        return await self._all(Tenant, "tenants")

    async def put_api_key(self, key: ApiKey) -> None:
        await self._link.run("put_api_key", {}, encode(key))

    async def get_api_key(self, key: ApiKeyId) -> ApiKey:
        """Read from the server each time, so that a revoked key stops at once: look at ``revoked_at``."""
        return await self._need(ApiKey, "apikeys", key, "api_key")

    async def list_api_keys(self, tenant: TenantId | None) -> list[ApiKey]:
        keys = await self._all(ApiKey, "apikeys")
        return [key for key in keys if tenant is None or key.tenant == tenant]

    async def revoke_api_key(self, key: ApiKeyId) -> ApiKey:
        return decode(ApiKey, await self._link.run("revoke_api_key", {"id": key}))
