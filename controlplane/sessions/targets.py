"""From what an attach names to the pool that serves it.

Pools, templates and tenants change rarely and are read on every attach, so they are kept for a second:
that is how long after a change (a share withdrawn, a lower limit) an attach may still go by the old one.
What is missing or refused is never kept. What must be exact (quota, state, version, deleting) is checked by the claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from controlplane.clock import Clock
from controlplane.errors import Conflict, NotFound, Permanent, Retryable
from controlplane.ids import PoolKey, TemplateKey, TenantId, check_name, pool_key, template_key
from controlplane.model.resources import Resources
from controlplane.model.template import Pool, Template
from controlplane.model.tenancy import Tenant
from controlplane.sessions.request import AttachRequest, ResourceWish
from controlplane.store.port import Store

T = TypeVar("T")
KEEP_S = 1.0
KEEP_ENTRIES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``cold_reason``: why a miss is one, where ``pool_empty`` would be less than is known."""

    pool: Pool
    template: Template
    cold_reason: str | None = None


class Targets:
    """``default_max_total``: largest number of sandboxes of a pool made for one-off attaches."""

    def __init__(self, store: Store, clock: Clock, *, default_max_total: int = 10) -> None:
        self._store = store
        self._clock = clock
        self._default_max_total = default_max_total
        self._kept: dict[str, tuple[float, Any]] = {}

    async def tenant(self, tenant: TenantId) -> Tenant:
        async def read() -> Tenant:
            try:
                return await self._store.get_tenant(tenant)
            except NotFound:
                return Tenant(id=tenant)

        return await self._keep(f"tenant {tenant}", read)

    async def resolve(self, tenant: TenantId, request: AttachRequest) -> Target:
        """NotFound ``pool_not_found`` / ``template_not_found`` also for what exists but is not shared."""
        if request.pool is not None:
            return await self._of_pool(tenant, request.pool)
        return await self._of_template(tenant, request.template or "", request.ref, request.resources)

    async def template_of(self, pool: PoolKey) -> TemplateKey | None:
        try:
            return (await self._keep(f"pool {pool}", lambda: self._store.get_pool(pool))).template
        except NotFound:
            return None

    def forget(self) -> None:
        """Read everything anew: the claim found that what was kept is no longer so."""
        self._kept.clear()

    async def _of_pool(self, tenant: TenantId, name: str) -> Target:
        owner, bare = _split(tenant, name, "pool")
        key = pool_key(owner, bare)
        missing = NotFound(
            "pool_not_found",
            f"There is no pool {name!r} that this tenant may attach to.",
            hint="List pools with GET /v1/pools.",
        )
        try:
            pool = await self._keep(f"pool {key}", lambda: self._store.get_pool(key))
            template = await self._keep(f"template {pool.template}", lambda: self._store.get_template(pool.template))
        except NotFound:
            raise missing from None
        if pool.tenant != tenant and (pool.adhoc or not _shared(template, tenant)):
            self._kept.pop(f"template {template.key}", None)
            raise missing
        return Target(pool=pool, template=template)

    async def _of_template(self, tenant: TenantId, name: str, ref: str | None, wish: ResourceWish | None) -> Target:
        template = await self._template(tenant, name)
        if ref is not None and template.repository is None:
            raise Permanent("invalid_ref", f"Template {name!r} has no repository that a ref could name.")
        if template.repository is not None and ref == template.repository.ref:
            ref = None
        resources = wish.over(template.resources) if wish else template.resources
        pools = [
            pool
            for pool in await self._keep("pools", self._store.list_pools)
            if pool.template == template.key and pool.tenant in (tenant, template.tenant) and not pool.deleting
        ]
        standing = [pool for pool in pools if not pool.adhoc and pool.ref == ref]
        same = [pool for pool in standing if pool.resources == resources]
        if same:
            return Target(pool=_preferred(same, tenant), template=template)
        cold_reason = "resources_differ" if standing else "no_pool"
        pool = await self._one_off(tenant, template, ref, resources, pools)
        return Target(pool=pool, template=template, cold_reason=cold_reason)

    async def _template(self, tenant: TenantId, name: str) -> Template:
        owner, bare = _split(tenant, name, "template")
        key = template_key(owner, bare)
        missing = NotFound(
            "template_not_found",
            f"There is no template {name!r} that this tenant may use.",
            hint="List templates with GET /v1/templates.",
        )
        try:
            template = await self._keep(f"template {key}", lambda: self._store.get_template(key))
        except NotFound:
            raise missing from None
        if template.tenant != tenant and not _shared(template, tenant):
            self._kept.pop(f"template {key}", None)
            raise missing
        return template

    async def _one_off(
        self, tenant: TenantId, template: Template, ref: str | None, resources: Resources, known: Sequence[Pool]
    ) -> Pool:
        name = f"adhoc-{_digest12(template, ref, resources)}"
        key = pool_key(tenant, name)
        for pool in known:
            if pool.key == key:
                return pool
        now = self._clock.now()
        wanted = Pool(
            key=key,
            tenant=tenant,
            name=name,
            template=template.key,
            ref=ref,
            resources=resources,
            min_ready=0,
            max_total=self._default_max_total,
            adhoc=True,
            created_at=now,
            updated_at=now,
        )
        try:
            made = await self._store.put_pool(wanted)
        except Conflict as error:
            raise Retryable("pool_deleting", "The pool for these sizes is just being removed.", after_s=2.0) from error
        self._kept.pop("pools", None)
        return made

    async def _keep(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        now = self._clock.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now < kept[0]:
            return cast(T, kept[1])
        value = await read()
        if len(self._kept) >= KEEP_ENTRIES:
            self._kept.clear()
        self._kept[key] = (now + KEEP_S, value)
        return value


def _shared(template: Template, tenant: TenantId) -> bool:
    return tenant in template.shared_with or "*" in template.shared_with


def _preferred(pools: Sequence[Pool], tenant: TenantId) -> Pool:
    """The caller's own first, then by name, so that equal requests meet the same pool."""
    return min(pools, key=lambda pool: (pool.tenant != tenant, pool.key))


def _split(tenant: TenantId, name: str, what: str) -> tuple[TenantId, str]:
    owner, slash, bare = name.partition("/")
    if not slash:
        return tenant, check_name(name, what)
    return TenantId(check_name(owner, "tenant")), check_name(bare, what)


def _digest12(template: Template, ref: str | None, resources: Resources) -> str:
    content = repr((template.key, ref, resources)).encode()
    return hashlib.sha256(content).hexdigest()[:12]
