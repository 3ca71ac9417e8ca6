"""Events, as pages or as server-sent events that resume."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, cast

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from controlplane.api.deps import ApiDeps, Platform, deps_of
from controlplane.api.routes.answers import errors
from controlplane.api.schemas.common import reply
from controlplane.api.schemas.tenancy import EventsOut, event_out
from controlplane.api.streams import started_stream
from controlplane.errors import Permanent
from controlplane.ids import TenantId
from controlplane.model.events import Event

router = APIRouter(prefix="/v1/events", tags=["events"])
# Both numbers of an id have 64 bits; nineteen digits always fit.
_POSITION = re.compile(r"\$|[0-9]{1,19}(-[0-9]{1,19})?")


@router.get(
    "",
    response_model=EventsOut,
    responses=errors(400)
    | {
        200: {
            "description": "A page, or with follow=1 a stream: `id`, `event` (the kind), `data` (the event as JSON).",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def events(
    request: Request,
    acting: Platform,
    after: Annotated[
        str | None, Query(description="Id of the last event seen; `0` from the oldest kept, `$` from now.")
    ] = None,
    kind: Annotated[
        list[str] | None, Query(description="Only kinds that begin so, such as `session.`; may be repeated.")
    ] = None,
    follow: Annotated[bool, Query(description="Stream events as they happen.")] = False,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    last_event_id: Annotated[str | None, Header(description="Resumes a stream after this event.")] = None,
) -> Response:
    """What changed, who did it and why. Operators see all tenants' events unless they name one."""
    deps = deps_of(request)
    position = last_event_id or after or ("$" if follow else "0")
    if not _POSITION.fullmatch(position):
        raise Permanent("invalid_position", f"{position[:80]!r} is not the id of an event, 0 or $.")
    kinds = tuple(kind or ())
    if follow:
        await deps.store.ping()
        return await started_stream(_stream(deps, acting.listed, position, kinds), "text/event-stream")
    found = await deps.store.read_events(position, acting.listed, limit, 0.0)
    shown = [event_out(event) for event in found if _wanted(event, kinds)]
    return reply(EventsOut(events=shown, next=found[-1].id if found else position))


async def _stream(deps: ApiDeps, tenant: TenantId | None, after: str, kinds: tuple[str, ...]) -> AsyncIterator[bytes]:
    """Comments keep proxies from closing a silent stream, and notice a client that is gone."""
    yield b": events\n\n"
    async with aclosing(cast(AsyncGenerator[Event], deps.store.follow_events(after, tenant))) as events:
        coming = asyncio.ensure_future(anext(events))
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=deps.limits.event_heartbeat_s)
                if not done:
                    yield b": heartbeat\n\n"
                    continue
                event = coming.result()
                coming = asyncio.ensure_future(anext(events))
                if _wanted(event, kinds):
                    yield _sse(event)
        finally:
            coming.cancel()
            await asyncio.wait({coming})


def _wanted(event: Event, kinds: tuple[str, ...]) -> bool:
    return not kinds or event.kind.startswith(kinds)


def _sse(event: Event) -> bytes:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event_out(event).model_dump_json()}\n\n".encode()
