"""Errors as problem details (RFC 9457): the only place that knows which kind is which status."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from controlplane.errors import Conflict, Denied, NotFound, Permanent, Retryable, WarmpoolError

ABOUT = "about:blank"
MEDIA_TYPE = "application/problem+json"
MAX_ECHO_CHARS = 200
_CLOSE = {"Connection": "close"}

_STATUS_OF_CODE = {"invalid_key": 401, "over_quota": 429}
_STATUS_OF_KIND: tuple[tuple[type[WarmpoolError], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (Denied, 403),
    (Retryable, 503),
    (Permanent, 400),
)


class BodyTooLarge(HTTPException):
    """More came than ``limit`` bytes. An HTTPException since FastAPI lets only these through while it reads a body."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body is larger than {limit} bytes.")


class BodyTooSlow(HTTPException):
    """The body did not come in time. An HTTPException for the same reason."""

    def __init__(self) -> None:
        super().__init__(408, "The body did not come in time.")


def status_of(error: WarmpoolError) -> int:
    by_code = _STATUS_OF_CODE.get(error.code)
    if by_code is not None:
        return by_code
    return next((status for kind, status in _STATUS_OF_KIND if isinstance(error, kind)), 500)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    hint: str = "",
    retry_after_s: float | None = None,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One problem+json answer. ``retry_after_s`` also goes into Retry-After, rounded up to whole seconds."""
    body: dict[str, Any] = {
        "type": ABOUT,
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
    }
    sent = dict(headers or {})
    if retry_after_s is not None:
        body["retry_after_s"] = retry_after_s
        sent["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    if status == 401:
        sent["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(body | dict(extra or {})), status, sent, MEDIA_TYPE)


def problem_of(error: WarmpoolError) -> Response:
    retry_after_s = error.after_s if isinstance(error, Retryable) else None
    return problem(status_of(error), error.code, error.message, hint=error.hint, retry_after_s=retry_after_s)


def body_too_large(error: BodyTooLarge) -> Response:
    return problem(413, "body_too_large", error.detail, hint="Send less at a time.")


def body_too_slow() -> Response:
    return problem(
        408, "body_too_slow", "The rest of the body did not come in time.", hint="Send it in one go.", headers=_CLOSE
    )


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(WarmpoolError, _on_warmpool_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(ValidationError, _on_invalid)
    app.add_exception_handler(BodyTooLarge, _on_too_large)
    app.add_exception_handler(BodyTooSlow, _on_too_slow)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


async def _on_warmpool_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WarmpoolError)
    return problem_of(error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | ValidationError)
    errors = [
        {"loc": [_short(str(part)) for part in item["loc"]], "msg": _short(item["msg"]), "type": item["type"]}
        for item in _items(error)[:20]
    ]
    first = errors[0] if errors else {"loc": [], "msg": "invalid"}
    where = ".".join(first["loc"]) or "the body"
    return problem(
        422,
        "invalid_request",
        f"The request does not have the expected form: {where}: {first['msg']}.",
        hint="Compare it with /docs or /openapi.json.",
        extra={"errors": errors},
    )


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = _short(request.url.path)
    if error.status_code == 404:
        return problem(404, "route_not_found", f"There is nothing at {path}.", hint="See /docs for what there is.")
    if error.status_code == 405:
        return problem(405, "method_not_allowed", f"{request.method} is not possible on {path}.", headers=error.headers)
    return problem(error.status_code, "http_error", _short(str(error.detail)), headers=error.headers)


async def _on_too_large(request: Request, error: Exception) -> Response:
    assert isinstance(error, BodyTooLarge)
    return body_too_large(error)


async def _on_too_slow(request: Request, error: Exception) -> Response:
    return body_too_slow()


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody reads this; it keeps a client's leaving out of the log of faults."""
    return problem(400, "client_disconnected", "The client went away before it had sent the whole body.")


def _items(error: RequestValidationError | ValidationError) -> Sequence[Any]:
    if isinstance(error, ValidationError):
        return error.errors(include_url=False, include_context=False, include_input=False)
    return error.errors()


def _short(text: str) -> str:
    return text if len(text) <= MAX_ECHO_CHARS else text[:MAX_ECHO_CHARS] + "…"
