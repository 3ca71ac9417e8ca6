"""The application: routes, errors and the edge put together."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from controlplane.api.collector import SharedValues
from controlplane.api.deps import ApiDeps
from controlplane.api.edge import Edge
from controlplane.api.errors import add_error_handlers
from controlplane.api.routes import (
    builds,
    commands,
    events,
    files,
    health,
    pools,
    sandboxes,
    sessions,
    templates,
    tenancy,
)
from controlplane.api.schemas.common import Problem
from controlplane.api.schemas.sessions import AttachIn

TITLE, VERSION = "Warmpool", "1"
DESCRIPTION = """A control plane that keeps sandboxes for coding agents ready and attaches a session in milliseconds.

Every error is a problem (application/problem+json) with a stable `code`, what happened, and what to do.
Sizes are given in bytes or as `512Mi`, and answered in bytes; times are epoch seconds, durations seconds."""

ROUTERS = (
    sessions.router,
    commands.router,
    files.router,
    templates.router,
    builds.router,
    pools.router,
    sandboxes.router,
    events.router,
    tenancy.router,
    health.router,
)


def create_app(deps: ApiDeps) -> FastAPI:
    """The API over the given services. It owns nothing: who made the services closes them.

    Cross-origin requests are not allowed: keys do not belong into browsers."""
    app = FastAPI(
        title=TITLE,
        version=VERSION,
        description=DESCRIPTION,
        redirect_slashes=False,
    )
    app.state.deps = deps
    app.state.shared_values = SharedValues(deps.store, deps.clock)
    # The routes themselves rather than include_router, which puts a context around each request.
    app.router.routes.extend(_routes())
    add_error_handlers(app)
    app.add_middleware(
        Edge,
        metrics=deps.metrics,
        authenticate=deps.tenancy.authenticate,
        max_body_bytes=deps.limits.max_body_bytes,
        max_upload_bytes=deps.limits.max_upload_bytes,
        body_within_s=deps.limits.body_within_s,
    )
    app.openapi = openapi_document  # type: ignore[method-assign]
    return app


@cache
def openapi_document() -> dict[str, Any]:
    """OpenAPI 3.1 of the API, with the schemas that routes refer to by name only."""
    document = get_openapi(title=TITLE, version=VERSION, description=DESCRIPTION, routes=_routes())
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (Problem, AttachIn):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    return document


def _routes() -> list[BaseRoute]:
    return [route for router in ROUTERS for route in router.routes]
