"""Sandboxes as recorded, and what the runtime can do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from controlplane.api.deps import Platform, deps_of
from controlplane.api.names import key_of
from controlplane.api.routes.answers import errors
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.pools import RuntimeOut, SandboxesOut, SandboxOut, runtime_out, sandbox_out
from controlplane.errors import NotFound, Retryable
from controlplane.ids import SandboxId, pool_key

router = APIRouter(prefix="/v1", tags=["sandboxes"])


@router.get("/sandboxes", response_model=SandboxesOut, responses=errors(400))
async def list_sandboxes(
    request: Request,
    acting: Platform,
    pool: Annotated[str | None, Query(description="Only of this pool.")] = None,
) -> Response:
    """Sandboxes of the tenant's pools; operators see all unless they name a tenant."""
    key = None if pool is None else key_of(acting.tenant, pool, pool_key)
    found = await deps_of(request).store.list_sandboxes(key)
    shown = [
        sandbox_out(sandbox, acting.caller.tenant)
        for sandbox in sorted(found, key=lambda s: (s.pool, s.created_at, s.id))
        if acting.listed is None or sandbox.tenant == acting.tenant
    ]
    return reply(SandboxesOut(sandboxes=shown))


@router.get("/sandboxes/{sandbox_id}", response_model=SandboxOut, responses=errors(404))
async def get_sandbox(request: Request, acting: Platform, sandbox_id: str) -> Response:
    """One sandbox, until it is gone."""
    sandbox = await deps_of(request).store.find_sandbox(SandboxId(sandbox_id))
    if sandbox is None or (acting.listed is not None and sandbox.tenant != acting.tenant):
        raise NotFound("sandbox_not_found", f"There is no sandbox {sandbox_id[:80]!r}.")
    return reply(sandbox_out(sandbox, acting.caller.tenant))


@router.get("/runtime", response_model=RuntimeOut, responses=errors())
async def runtime(request: Request, acting: Platform) -> Response:
    """Which limits and walls the deployment's runtime holds, and what is missing."""
    capabilities = await deps_of(request).capabilities()
    if capabilities is None:
        raise Retryable(
            "runtime_unknown", "No worker has reported what the runtime can do yet.", hint="Is a worker running?"
        )
    return reply(runtime_out(capabilities))
