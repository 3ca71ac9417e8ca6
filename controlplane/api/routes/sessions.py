"""Attach, read, extend and end sessions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from controlplane.api.deps import Acting, Attaching, Platform, deps_of, timings_of
from controlplane.api.routes.answers import answers, errors
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.sessions import AttachIn, KeepaliveIn, SessionOut, SessionsOut, session_out
from controlplane.errors import Permanent
from controlplane.model.lifecycle import SESSION
from controlplane.model.sandbox import Session

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])
STATES = frozenset(SESSION.values())


@router.post(
    "",
    status_code=201,
    response_model=SessionOut,
    responses=errors(400, 404, 409, 413, 429) | answers(202, "Still waiting or binding; see Location.", SessionOut),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/AttachIn"}}},
        }
    },
)
async def attach(
    request: Request,
    acting: Attaching,
    idempotency_key: Annotated[str | None, Header(description="The same key gives the same session.")] = None,
) -> Response:
    """Attach a session to a ready sandbox, or wait for one.

    201: attached. 202: waiting for a sandbox, `queue` says where; read it again at `Location`."""
    timings = timings_of(request)
    timings.mark("auth")
    deps = deps_of(request)
    # Parsed here rather than by FastAPI: one pass over the bytes on the path that is measured.
    body = AttachIn.model_validate_json(await request.body())
    if None not in (idempotency_key, body.idempotency_key) and idempotency_key != body.idempotency_key:
        raise Permanent("invalid_idempotency_key", "The header and the body name different idempotency keys.")
    wanted = body.request(idempotency_key or body.idempotency_key)
    result = await deps.sessions.attach(acting.tenant, acting.caller.key, wanted, timings, acting.caller.key)
    session = result.session
    shown = session_out(
        session,
        await deps.sessions.template_of(session),
        acting.caller.tenant,
        progress=result.progress,
        timings_ms=result.timings_ms,
    )
    attached = session.state not in ("waiting", "binding")
    return reply(shown, 201 if attached else 202, {"Location": f"/v1/sessions/{session.id}"})


@router.get("", response_model=SessionsOut, responses=errors(400))
async def list_sessions(
    request: Request,
    acting: Platform,
    state: Annotated[list[str] | None, Query(description="Only these states; may be repeated.")] = None,
    label: Annotated[
        list[str] | None, Query(description="Only with this label, as `key=value`; may be repeated.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Sessions of the tenant, the newest first; operators see those of all tenants unless they name one."""
    deps = deps_of(request)
    states = [part for item in state or [] for part in item.split(",") if part]
    unknown = sorted(set(states) - STATES)
    if unknown:
        raise Permanent("invalid_state", f"There is no state {unknown[0][:40]!r}.", hint=f"States: {sorted(STATES)}.")
    found = await deps.sessions.list(acting.listed, states, _labels(label or []), limit)
    shown = [session_out(s, await deps.sessions.template_of(s), acting.caller.tenant) for s in found]
    return reply(SessionsOut(sessions=shown))


@router.get("/{session_id}", response_model=SessionOut, responses=errors(400, 404))
async def get_session(
    request: Request,
    acting: Platform,
    session_id: str,
    wait_s: Annotated[float, Query(description="Hold the answer so long while the session is on its way.")] = 0.0,
) -> Response:
    """One session, also for some time after its end."""
    session = await deps_of(request).sessions.get(acting.tenant, session_id, wait_s)
    return await _shown(request, acting, session)


@router.post("/{session_id}/keepalive", response_model=SessionOut, responses=errors(400, 404, 409))
async def keepalive(request: Request, acting: Platform, session_id: str, body: KeepaliveIn | None = None) -> Response:
    """Extend the lease: it ends `ttl_s` from now."""
    ttl_s = body.ttl_s if body else None
    session = await deps_of(request).sessions.keepalive(acting.tenant, session_id, ttl_s)
    return await _shown(request, acting, session)


@router.delete(
    "/{session_id}",
    response_model=SessionOut,
    responses=errors() | answers(204, "No such session is known: nothing was to be done."),
)
async def end_session(request: Request, acting: Platform, session_id: str) -> Response:
    """End a session and give its sandbox back. Legal in every state, and twice."""
    session = await deps_of(request).sessions.end(acting.tenant, session_id, f"key:{acting.caller.key}")
    return Response(status_code=204) if session is None else await _shown(request, acting, session)


async def _shown(request: Request, acting: Acting, session: Session) -> Response:
    sessions = deps_of(request).sessions
    progress = await sessions.progress(session)
    return reply(session_out(session, await sessions.template_of(session), acting.caller.tenant, progress=progress))


def _labels(pairs: list[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise Permanent("invalid_labels", f"label={pair[:80]!r} is not key=value.")
        labels[key] = value
    return labels
