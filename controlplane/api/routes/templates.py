"""Templates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from controlplane.api.deps import Acting, Platform, deps_of
from controlplane.api.routes.answers import answers, errors
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.templates import (
    BuildAskedOut,
    BuildIn,
    TemplateIn,
    TemplateOut,
    TemplatesOut,
    lineage_out,
    template_out,
)
from controlplane.errors import NotFound
from controlplane.ids import TemplateKey, template_key
from controlplane.model.template import Lineage, Template

router = APIRouter(prefix="/v1/templates", tags=["templates"])


@router.put("/{name}", response_model=TemplateOut, responses=errors(400) | answers(201, "Created.", TemplateOut))
async def put_template(request: Request, acting: Platform, name: str, body: TemplateIn) -> Response:
    """Create or replace a template. Its revision rises when something that a build reads changed."""
    deps = deps_of(request)
    wanted = body.template(acting.tenant, name, deps.limits.step_timeout_s)
    try:
        await deps.templates.get(wanted.key, reader=None)
        status = 200
    except NotFound:
        status = 201
    stored = await deps.templates.put(wanted, ops=acting.caller.role == "ops")
    deps.sessions.forget()
    return reply(template_out(stored, await deps.templates.lineages(stored.key), acting.caller.tenant), status)


@router.get("", response_model=TemplatesOut, responses=errors())
async def list_templates(request: Request, acting: Platform) -> Response:
    """One's own templates and those shared with one; operators see all unless they name a tenant."""
    deps = deps_of(request)
    by_template: dict[TemplateKey, list[Lineage]] = defaultdict(list)
    for lineage in await deps.store.list_lineages():
        by_template[lineage.template].append(lineage)
    found = await deps.templates.list(reader=acting.listed)
    shown = [template_out(t, _visible(t, by_template[t.key], acting), acting.caller.tenant) for t in found]
    return reply(TemplatesOut(templates=shown))


@router.get("/{name}", response_model=TemplateOut, responses=errors(400, 404))
async def get_template(request: Request, acting: Platform, name: str) -> Response:
    """One template, with the state of its versions."""
    deps = deps_of(request)
    template = await deps.templates.get(template_key(acting.tenant, name), reader=acting.tenant)
    lineages = _visible(template, await deps.templates.lineages(template.key), acting)
    return reply(template_out(template, lineages, acting.caller.tenant))


@router.delete("/{name}", status_code=204, responses=errors(400, 409))
async def delete_template(request: Request, acting: Platform, name: str) -> Response:
    """Delete a template that no pool names; a missing one is success."""
    deps = deps_of(request)
    await deps.templates.delete(template_key(acting.tenant, name))
    deps.sessions.forget()
    return Response(status_code=204)


@router.post("/{name}/build", status_code=202, response_model=BuildAskedOut, responses=errors(400, 404))
async def build(request: Request, acting: Platform, name: str, body: BuildIn | None = None) -> Response:
    """Forget earlier failures and build now, even if nothing changed."""
    deps = deps_of(request)
    key = template_key(acting.tenant, name)
    asked = await deps.templates.build(key, body.ref if body else None)
    found = await deps.store.get_lineage(asked)
    return reply(BuildAskedOut(lineage=lineage_out(found or Lineage(key=asked, template=key))), 202)


def _visible(template: Template, lineages: Sequence[Lineage], acting: Acting) -> list[Lineage]:
    """Refs that other tenants attached to are not a reader's business."""
    whole = acting.caller.role == "ops" or template.tenant == acting.tenant
    return [lineage for lineage in lineages if whole or lineage.ref is None]
