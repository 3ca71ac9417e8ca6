"""Who am I, API keys, tenants."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from controlplane.api.deps import Anyone, Ops, deps_of
from controlplane.api.routes.answers import errors
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.tenancy import (
    KeyIn,
    KeyOut,
    KeysOut,
    NewKeyOut,
    TenantIn,
    TenantOut,
    WhoamiOut,
    key_out,
    tenant_out,
)
from controlplane.ids import TenantId

router = APIRouter(prefix="/v1", tags=["tenancy"])


@router.get("/whoami", response_model=WhoamiOut, responses=errors())
async def whoami(request: Request, acting: Anyone) -> Response:
    """The tenant and role of the key that asks."""
    caller = acting.caller
    return reply(WhoamiOut(tenant=acting.tenant, role=caller.role, key=caller.key))


@router.post("/keys", status_code=201, response_model=NewKeyOut, responses=errors(400))
async def create_key(request: Request, acting: Ops, body: KeyIn) -> Response:
    """Make an API key. Its text is in this answer only."""
    tenant = TenantId(body.tenant) if body.tenant is not None else acting.tenant
    record, text = await deps_of(request).tenancy.create_key(tenant, body.role, body.note)
    deps_of(request).sessions.forget()
    shown = NewKeyOut(**key_out(record).model_dump(), key=text)
    return reply(shown, 201, {"Cache-Control": "no-store"})


@router.get("/keys", response_model=KeysOut, responses=errors())
async def list_keys(request: Request, acting: Ops) -> Response:
    """Keys of all tenants, or of the one named; without their secrets, which nobody has."""
    keys = await deps_of(request).tenancy.list_keys(acting.listed)
    return reply(KeysOut(keys=[key_out(key) for key in keys]))


@router.delete("/keys/{key_id}", response_model=KeyOut, responses=errors(404))
async def revoke_key(request: Request, acting: Ops, key_id: str) -> Response:
    """Revoke a key at once: no request with it succeeds from here on. Sessions it made live on."""
    return reply(key_out(await deps_of(request).tenancy.revoke_key(key_id)))


@router.put("/tenants/{tenant_id}", response_model=TenantOut, responses=errors(400))
async def put_tenant(request: Request, acting: Ops, tenant_id: str, body: TenantIn) -> Response:
    """Set a tenant's limits; what is left out stays."""
    deps = deps_of(request)
    changed = await deps.tenancy.put_tenant(TenantId(tenant_id), body.max_sessions, body.max_ttl_s)
    deps.sessions.forget()
    return reply(tenant_out(changed))
