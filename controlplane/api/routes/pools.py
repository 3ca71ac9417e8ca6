"""Pools."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter, Request
from starlette.responses import Response

from controlplane.api.deps import Acting, Ops, Platform, deps_of
from controlplane.api.names import key_of
from controlplane.api.routes.answers import errors
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.pools import (
    ExplanationOut,
    PinIn,
    PoolIn,
    PoolOut,
    PoolsOut,
    decision_out,
    pool_out,
)
from controlplane.api.schemas.templates import lineage_out
from controlplane.ids import lineage_key, pool_key, template_key
from controlplane.model.actions import Observed
from controlplane.model.template import Pool
from controlplane.sessions.request import ResourceWish
from controlplane.store.port import PoolCounts

router = APIRouter(prefix="/v1/pools", tags=["pools"])


@router.put("/{name}", response_model=PoolOut, responses=errors(400, 404, 409))
async def put_pool(request: Request, acting: Platform, name: str, body: PoolIn) -> Response:
    """Create or replace a pool."""
    deps = deps_of(request)
    template = await deps.templates.get(key_of(acting.tenant, body.template, template_key), reader=acting.tenant)
    sizes = ResourceWish(**body.resources.model_dump()) if body.resources else ResourceWish()
    wanted = Pool(
        key=pool_key(acting.tenant, name),
        tenant=acting.tenant,
        name=name,
        template=template.key,
        ref=body.ref,
        resources=sizes.over(template.resources),
        min_ready=body.min_ready,
        max_total=max(body.min_ready, deps.limits.default_max_total) if body.max_total is None else body.max_total,
    )
    stored = await deps.pools.put(wanted)
    deps.sessions.forget()
    return await _shown(request, acting, stored)


@router.get("", response_model=PoolsOut, responses=errors())
async def list_pools(request: Request, acting: Platform) -> Response:
    """The tenant's pools; operators see all unless they name a tenant."""
    pools = await deps_of(request).pools.list(tenant=acting.listed)
    observed = await deps_of(request).store.observe()
    counts = _counts(observed)
    shown = [
        pool_out(
            pool,
            _counted(pool, counts, observed),
            observed.lineages.get(lineage_key(pool.template, pool.ref)),
            observed.last_used_at.get(pool.key),
            acting.caller.tenant,
        )
        for pool in pools
    ]
    return reply(PoolsOut(pools=shown))


@router.get("/{name}", response_model=PoolOut, responses=errors(400, 404))
async def get_pool(request: Request, acting: Platform, name: str) -> Response:
    """One pool."""
    return await _shown(request, acting, await deps_of(request).pools.get(pool_key(acting.tenant, name)))


@router.delete("/{name}", status_code=204, responses=errors(400))
async def delete_pool(request: Request, acting: Platform, name: str) -> Response:
    """Drain a pool to nothing and remove it: waiting sessions end, attached ones live on."""
    deps = deps_of(request)
    await deps.pools.delete(pool_key(acting.tenant, name))
    deps.sessions.forget()
    return Response(status_code=204)


@router.put("/{name}/pin", response_model=PoolOut, responses=errors(400, 404))
async def pin_pool(request: Request, acting: Ops, name: str, body: PinIn) -> Response:
    """Fix the number of ready sandboxes by hand, or let the plan decide again."""
    return await _shown(request, acting, await deps_of(request).pools.pin(pool_key(acting.tenant, name), body.ready))


@router.get("/{name}/explain", response_model=ExplanationOut, responses=errors(400, 404))
async def explain_pool(request: Request, acting: Platform, name: str) -> Response:
    """Why the pool is sized as it is: the scheduler's last decision, with its reasons."""
    told = await deps_of(request).pools.explain(pool_key(acting.tenant, name))
    return reply(
        ExplanationOut(
            pool=await _pool_out(request, acting, told.pool),
            decision=decision_out(told.decision) if told.decision else None,
            at=told.at,
            lineage=lineage_out(told.lineage) if told.lineage else None,
        )
    )


async def _shown(request: Request, acting: Acting, pool: Pool) -> Response:
    return reply(await _pool_out(request, acting, pool))


async def _pool_out(request: Request, acting: Acting, pool: Pool) -> PoolOut:
    deps = deps_of(request)
    return pool_out(
        pool,
        await deps.pools.counts(pool.key),
        await deps.store.get_lineage(lineage_key(pool.template, pool.ref)),
        await deps.store.pool_used_at(pool.key),
        acting.caller.tenant,
    )


def _counts(observed: Observed) -> Counter[tuple[str, str]]:
    return Counter((sandbox.pool, sandbox.state) for sandbox in observed.sandboxes)


def _counted(pool: Pool, counts: Counter[tuple[str, str]], observed: Observed) -> PoolCounts:
    def of(*states: str) -> int:
        return sum(counts[(pool.key, state)] for state in states)

    return PoolCounts(
        ready=of("ready"),
        building=of("building"),
        claimed=of("claimed", "paused"),
        draining=of("draining"),
        failed=of("failed"),
        waiting=observed.waiting.get(pool.key, 0),
    )
