"""One service for everything that people do to pools."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controlplane.errors import NotFound, Permanent
from controlplane.ids import PoolKey, TenantId, lineage_key, pool_key
from controlplane.model.actions import PoolDecision
from controlplane.model.resources import MIB
from controlplane.model.template import Lineage, Pool
from controlplane.planning.explain import decode_decision
from controlplane.store.port import PoolCounts, Store

MOST_SANDBOXES = 100_000
_MAX_REF_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``decision`` None: the scheduler has not seen the pool yet. ``at``: when it last decided otherwise than
    before, epoch seconds."""

    pool: Pool
    decision: PoolDecision | None
    at: float | None
    lineage: Lineage | None


class PoolService:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, pool: Pool) -> Pool:
        """Create or replace; idempotent. The pin stays as it is: it is an operator's (``pin``).

        Raises Permanent ``invalid_pool``, ``invalid_resources``, ``invalid_ref``; NotFound
        ``template_not_found`` also for a template that is not shared with the pool's tenant."""
        if pool.key != pool_key(pool.tenant, pool.name):
            raise Permanent("invalid_name", f"{pool.key[:80]!r} is not the key of this tenant and name.")
        _check_sizes(pool)
        template = await self._store.get_template(pool.template)
        if not (template.tenant == pool.tenant or {pool.tenant, "*"} & set(template.shared_with)):
            raise NotFound("template_not_found", f"There is no template {pool.template!r}.")
        try:
            pinned = (await self._store.get_pool(pool.key)).pinned_ready
        except NotFound:
            pinned = pool.pinned_ready
        _check_pin(pinned, pool.max_total)
        return await self._store.put_pool(replace(pool, pinned_ready=pinned, adhoc=False, deleting=False))

    async def get(self, key: PoolKey) -> Pool:
        return await self._store.get_pool(key)

    async def list(self, *, tenant: TenantId | None) -> list[Pool]:
        """By key; None lists all tenants' (operators)."""
        every = await self._store.list_pools()
        return sorted((pool for pool in every if tenant is None or pool.tenant == tenant), key=lambda pool: pool.key)

    async def counts(self, key: PoolKey) -> PoolCounts:
        return await self._store.pool_counts(key)

    async def delete(self, key: PoolKey) -> None:
        """Attached sessions live on; waiting ones end with ``pool_deleted``. Missing: success."""
        try:
            await self._store.delete_pool(key)
        except NotFound:
            return
        await self._store.wake()

    async def pin(self, key: PoolKey, ready: int | None) -> Pool:
        """Fix the number of ready sandboxes, over min_ready and any forecast; None lets them decide again."""
        pool = await self._store.get_pool(key)
        _check_pin(ready, pool.max_total)
        pinned = await self._store.set_pool_pin(key, ready)
        await self._store.wake()
        return pinned

    async def explain(self, key: PoolKey) -> Explanation:
        """Why the pool is sized as it is, by the scheduler's last decision."""
        pool = await self._store.get_pool(key)
        lineage = await self._store.get_lineage(lineage_key(pool.template, pool.ref))
        text = await self._store.explained(key)
        decision, at = decode_decision(text) if text is not None else (None, None)
        return Explanation(pool=pool, decision=decision, at=at, lineage=lineage)


def _check_sizes(pool: Pool) -> None:
    if not 1 <= pool.max_total <= MOST_SANDBOXES:
        raise Permanent("invalid_pool", f"max_total is {pool.max_total}; it must be 1 to {MOST_SANDBOXES}.")
    if not 0 <= pool.min_ready <= pool.max_total:
        raise Permanent(
            "invalid_pool",
            f"min_ready is {pool.min_ready}; it must be 0 to max_total ({pool.max_total}).",
            hint="Raise max_total, which counts attached and starting sandboxes too, or lower min_ready.",
        )
    ref = pool.ref
    if ref is not None and (
        not 0 < len(ref) <= _MAX_REF_CHARS or ref.startswith("-") or any(ord(c) < 33 or ord(c) == 127 for c in ref)
    ):
        raise Permanent("invalid_ref", f"{ref[:80]!r} is not a branch, tag or commit.")
    resources = pool.resources
    checks = (
        ("memory_bytes", resources.memory_bytes, 16 * MIB),
        ("cpu_cores", resources.cpu_cores, 0.01),
        ("pids", resources.pids, 16),
        ("disk_bytes", resources.disk_bytes, 16 * MIB),
    )
    for name, value, least in checks:
        if value is not None and not least <= value < 2**53:
            raise Permanent("invalid_resources", f"resources.{name} is {value!s:.40}; the least is {least:g}.")


def _check_pin(ready: int | None, max_total: int) -> None:
    if ready is not None and not 0 <= ready <= max_total:
        raise Permanent("invalid_pin", f"Pinned at {ready}; it must be 0 to the pool's max_total ({max_total}).")
