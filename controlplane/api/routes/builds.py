"""Builds of templates, and their logs."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from controlplane.api.deps import Acting, ApiDeps, Platform, deps_of
from controlplane.api.names import key_of
from controlplane.api.routes.answers import errors
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.templates import BuildOut, BuildsOut, LogsOut, build_out, chunk_out
from controlplane.artifacts.port import LogChunk
from controlplane.errors import NotFound, Permanent
from controlplane.ids import BuildId, template_key
from controlplane.model.template import Build

router = APIRouter(prefix="/v1/builds", tags=["builds"])
MAX_PAGE_BYTES = 512 * 1024
LOOK_EVERY_S = 0.25
SEARCHED = 1000
ENDED = ("succeeded", "failed")


@router.get("", response_model=BuildsOut, responses=errors(400, 404))
async def list_builds(
    request: Request,
    acting: Platform,
    template: Annotated[str | None, Query(description="Only of this template.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> Response:
    """Builds, the newest first; operators see all tenants' unless they name one."""
    deps = deps_of(request)
    if template is not None:
        named = await deps.templates.get(key_of(acting.tenant, template, template_key), reader=acting.tenant)
        _owned_by(named.tenant, acting)
        found = await deps.store.list_builds(named.key, limit)
    elif acting.listed is None:
        found = await deps.store.list_builds(None, limit)
    else:
        recent = await deps.store.list_builds(None, SEARCHED)
        found = [build for build in recent if build.tenant == acting.tenant][:limit]
    return reply(BuildsOut(builds=[build_out(build, acting.caller.tenant) for build in found]))


@router.get("/{build_id}", response_model=BuildOut, responses=errors(404))
async def get_build(request: Request, acting: Platform, build_id: str) -> Response:
    """One build, with each of its steps."""
    return reply(build_out(await _build(deps_of(request), acting, build_id), acting.caller.tenant))


@router.get("/{build_id}/logs", response_model=LogsOut, responses=errors(400, 404))
async def logs(
    request: Request,
    acting: Platform,
    build_id: str,
    step: Annotated[str | None, Query(description="Only this step's log.")] = None,
    after: Annotated[
        list[str] | None,
        Query(description="Offset to read from: a number with `step`, else `STEP:OFFSET`, once for each step."),
    ] = None,
    wait_s: Annotated[float, Query(ge=0, description="Hold the answer so long while there is nothing new.")] = 0.0,
) -> Response:
    """The log of each step, also of failed builds. Go on with the offsets of `next`."""
    deps = deps_of(request)
    offsets = _offsets(step, after or [])
    until = deps.clock.monotonic() + min(wait_s, deps.limits.max_wait_s)
    while True:
        # The build first: what it had written before it ended is in the reading that follows.
        build = await _build(deps, acting, build_id)
        chunks = await _read(deps, build, step, offsets)
        ended = build.state in ENDED
        if any(chunk.text for chunk in chunks) or ended or deps.clock.monotonic() >= until:
            break
        await asyncio.sleep(LOOK_EVERY_S)
    following = offsets | {chunk.step: chunk.next_offset for chunk in chunks}
    shown = [chunk_out(chunk) for chunk in chunks if chunk.text]
    return reply(LogsOut(build=build.id, state=build.state, chunks=shown, next=following, complete=ended and not shown))


async def _read(deps: ApiDeps, build: Build, step: str | None, offsets: dict[str, int]) -> list[LogChunk]:
    wanted = [step] if step is not None else await deps.logs.steps(build.id)
    chunks: list[LogChunk] = []
    left = MAX_PAGE_BYTES
    for name in wanted:
        if left <= 0:
            break
        chunk = await deps.logs.read(build.id, name, offsets.get(name, 0), left)
        left -= len(chunk.text)
        chunks.append(chunk)
    return chunks


async def _build(deps: ApiDeps, acting: Acting, build_id: str) -> Build:
    missing = NotFound("build_not_found", f"There is no build {build_id[:80]!r}.", hint="List them: GET /v1/builds.")
    try:
        build = await deps.store.get_build(BuildId(build_id))
    except NotFound:
        raise missing from None
    if acting.listed is not None and build.tenant != acting.tenant:
        raise missing
    return build


def _owned_by(tenant: str, acting: Acting) -> None:
    """Logs may show what a tenant's repository holds: sharing a template does not share them."""
    if tenant != acting.tenant and acting.caller.role != "ops":
        raise NotFound("template_not_found", "This tenant has no such template of its own.")


def _offsets(step: str | None, after: list[str]) -> dict[str, int]:
    offsets = {}
    for item in after:
        name, _, number = item.rpartition(":")
        name = name or step or ""
        if not name or not number.isdigit() or len(number) > 15:
            raise Permanent("invalid_offset", f"after={item[:80]!r} is not OFFSET with a step, or STEP:OFFSET.")
        offsets[name] = int(number)
    return offsets
