"""Alive, ready, metrics: without a key, for orchestrators and scrapers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from controlplane.api.collector import metrics_page
from controlplane.api.deps import Part, deps_of
from controlplane.api.routes.answers import raw
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.tenancy import PartOut, ReadyOut
from controlplane.errors import WarmpoolError

router = APIRouter(tags=["health"])
CHECK_S = 3.0


@router.get("/healthz", responses=raw(200, "text/plain", "The process answers."))
async def healthz() -> Response:
    """Whether this process is alive; says nothing of what it depends on."""
    return Response("ok\n", media_type="text/plain")


@router.get(
    "/readyz", response_model=ReadyOut, responses={503: {"model": ReadyOut, "description": "A part is missing."}}
)
async def readyz(request: Request) -> Response:
    """Whether sessions can be served, and which part is missing if not."""
    deps = deps_of(request)

    async def store() -> Part:
        await deps.store.ping()
        return Part(name="store", ok=True)

    parts = [await _checked(store)]
    if parts[0].ok:  # The others are known from the store only.
        parts += await asyncio.gather(*(_checked(check) for check in deps.parts))
    ready = all(part.ok for part in parts)
    shown = ReadyOut(ready=ready, parts=[PartOut(name=p.name, ok=p.ok, detail=p.detail) for p in parts])
    return reply(shown, 200 if ready else 503)


@router.get("/metrics", responses=raw(200, "text/plain", "Prometheus text format."))
async def metrics(request: Request) -> Response:
    """Metrics of this process, and those that the deployment shares."""
    page, media_type = await metrics_page(request.app.state.shared_values, deps_of(request).metrics)
    return Response(page, media_type=media_type)


async def _checked(check: Callable[[], Awaitable[Part]]) -> Part:
    name = getattr(check, "__name__", "part")
    try:
        async with asyncio.timeout(CHECK_S):
            return await check()
    except TimeoutError:
        return Part(name=name, ok=False, detail=f"no answer within {CHECK_S:g} s")
    except WarmpoolError as error:
        return Part(name=name, ok=False, detail=error.message)
