"""Commands of a session, through the control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from agents.wire import ExecEvent
from controlplane.api.deps import Platform, deps_of
from controlplane.api.routes.answers import errors, raw
from controlplane.api.schemas.commands import EventPageOut, ExecIn, ExecListOut, ExecStatusOut, SignalIn
from controlplane.api.streams import started_stream
from controlplane.errors import Permanent
from controlplane.sessions.machine import new_exec_id

router = APIRouter(prefix="/v1/sessions/{session_id}/exec", tags=["commands"])
_encoder = msgspec.json.Encoder()
After = Annotated[int, Query(ge=0, description="Events later than this number.")]


def wire(value: object, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status, media_type="application/json")


@router.post("", status_code=201, response_model=ExecStatusOut, responses=errors(400, 404, 409, 413))
async def start(request: Request, acting: Platform, session_id: str, body: ExecIn) -> Response:
    """Start a command. The same `id` again starts nothing and answers the command's status."""
    status = await deps_of(request).machine.exec_start(acting.tenant, session_id, body.start(new_exec_id()))
    return wire(status, 201)


@router.get("", response_model=ExecListOut, responses=errors(404, 409))
async def list_commands(request: Request, acting: Platform, session_id: str) -> Response:
    """Commands of the session that are still known."""
    return wire(await deps_of(request).machine.exec_list(acting.tenant, session_id))


@router.get("/{exec_id}", response_model=ExecStatusOut, responses=errors(404, 409))
async def status(request: Request, acting: Platform, session_id: str, exec_id: str) -> Response:
    """A command's present state."""
    return wire(await deps_of(request).machine.exec_status(acting.tenant, session_id, exec_id))


@router.get("/{exec_id}/events", response_model=EventPageOut, responses=errors(400, 404, 409))
async def events(
    request: Request,
    acting: Platform,
    session_id: str,
    exec_id: str,
    after: After = 0,
    wait_s: Annotated[float, Query(ge=0, description="Hold the answer so long while there is no event.")] = 0.0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """A page of a command's events: output, state, exit, in one sequence."""
    deps = deps_of(request)
    if wait_s > deps.limits.max_wait_s:
        raise Permanent("invalid_wait", f"wait_s is {wait_s:g}; the most is {deps.limits.max_wait_s:g}.")
    return wire(await deps.machine.exec_events(acting.tenant, session_id, exec_id, after, wait_s, limit))


@router.get(
    "/{exec_id}/stream",
    response_class=StreamingResponse,
    responses=errors(404, 409) | raw(200, "application/x-ndjson", "One event (as in a page) per line, to `closed`."),
)
async def stream(request: Request, acting: Platform, session_id: str, exec_id: str, after: After = 0) -> Response:
    """A command's events as they happen. A stream that ends without `closed` was cut: resume with `after`."""
    source = deps_of(request).machine.exec_stream(acting.tenant, session_id, exec_id, after)
    return await started_stream(_lines(source), "application/x-ndjson")


@router.post(
    "/{exec_id}/stdin",
    status_code=204,
    responses=errors(404, 409, 413),
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def stdin(
    request: Request,
    acting: Platform,
    session_id: str,
    exec_id: str,
    eof: Annotated[bool, Query(description="Close its input after this.")] = False,
) -> Response:
    """Write to a command that was started with `stdin_open`."""
    data = await request.body()
    await deps_of(request).machine.exec_stdin(acting.tenant, session_id, exec_id, data, eof)
    return Response(status_code=204)


@router.post("/{exec_id}/signal", response_model=ExecStatusOut, responses=errors(400, 404, 409))
async def signal(request: Request, acting: Platform, session_id: str, exec_id: str, body: SignalIn) -> Response:
    """Send a signal to a command, or cancel it."""
    return wire(await deps_of(request).machine.exec_signal(acting.tenant, session_id, exec_id, body.request()))


async def _lines(events: AsyncIterator[ExecEvent]) -> AsyncIterator[bytes]:
    async for event in events:
        yield _encoder.encode(event) + b"\n"
