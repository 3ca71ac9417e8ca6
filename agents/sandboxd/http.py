"""From ASGI to typed handlers and back: methods, authentication, bodies with a limit, problems.

There is no middleware: each path has one ``Endpoint`` that does these steps itself, in order.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agents.sandboxd.auth import Door
from agents.sandboxd.binding import Holder
from agents.sandboxd.problems import ProblemError
from agents.wire import Problem
from agents.wire.token import SYSTEM

MAX_JSON_BYTES = 16 * 1024 * 1024
MAX_WAIT_S = 60.0
_PLENTY = 10**9
log = logging.getLogger("sandboxd.http")
T = TypeVar("T")

Handler = Callable[[Request, str], Awaitable[Response]]


class Endpoint:
    """An ASGI app for one path. A handler gets the request and its subject, ``system`` or a claim id."""

    def __init__(self, door: Door, holder: Holder, handlers: Mapping[str, Handler]) -> None:
        self._door = door
        self._holder = holder
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            handler = self._handlers.get(scope["method"])
            if handler is None:
                allowed = ", ".join(sorted(self._handlers))
                raise ProblemError(405, "method_not_allowed", f"This path takes {allowed}.")
            subject = self._door.admit(request.headers.get("authorization"), self._holder.claim_id)
            if subject != SYSTEM:
                self._holder.touch()
            response = await handler(request, subject)
        except ClientDisconnect:
            return
        except ProblemError as error:
            response = problem(error.status, error.problem)
        except Exception as error:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = problem(500, Problem(code="internal", detail=f"sandboxd failed: {error!r}."))
        await response(scope, receive, send)


def answer(message: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(message), status, media_type="application/json")


def problem(status: int, body: Problem) -> Response:
    response = answer(body, status)
    if status == 413:
        # The rest of the body is not worth reading: the connection ends instead.
        response.headers["connection"] = "close"
    return response


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await problem(404, Problem(code="no_such_path", detail="sandboxd has no such path."))(scope, receive, send)


async def body_chunks(request: Request, limit_bytes: int) -> AsyncIterator[bytes]:
    """The body as it comes; ProblemError 413 as soon as it is known to be above ``limit_bytes``."""
    declared = request.headers.get("content-length", "0")
    left = limit_bytes
    if not declared.isdigit() or int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    async for chunk in request.stream():
        left -= len(chunk)
        if left < 0:
            raise _too_large(limit_bytes)
        if chunk:
            yield chunk


def _too_large(limit_bytes: int) -> ProblemError:
    return ProblemError(413, "body_too_large", f"The body is above the limit of {limit_bytes} bytes.")


async def read_body(request: Request, limit_bytes: int = MAX_JSON_BYTES) -> bytes:
    return b"".join([chunk async for chunk in body_chunks(request, limit_bytes)])


async def read_json(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """400 ``bad_request`` for anything that is not exactly the message asked for."""
    try:
        return decoder.decode(await read_body(request))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProblemError(400, "bad_request", f"The body is not the message asked for: {error}.") from error


def number(request: Request, name: str, default: int, highest: int = _PLENTY) -> int:
    text = request.query_params.get(name, "")
    if text and not (text.isascii() and text.isdigit() and int(text[:12]) <= highest and len(text) <= 12):
        raise ProblemError(400, "bad_request", f"{name} is a whole number from 0 to {highest}.")
    return int(text) if text else default


def seconds(request: Request, name: str) -> float:
    """A wait, 0 if absent; longer ones are cut to ``MAX_WAIT_S``."""
    text = request.query_params.get(name) or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise ProblemError(400, "bad_request", f"{name} is a number of seconds, 0 or above.")
    return min(value, MAX_WAIT_S)


def flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name) or "0"
    if text not in ("0", "1"):
        raise ProblemError(400, "bad_request", f"{name} is 0 or 1.")
    return text == "1"


def param(request: Request, name: str) -> str:
    value: Any = request.path_params[name]
    return str(value)
