"""The outermost layer of every request, as plain ASGI: start time, body limit, metrics, last-resort 500.

Plain ASGI since Starlette's ``BaseHTTPMiddleware`` costs a task and a queue per request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.api.errors import BodyTooLarge, BodyTooSlow, body_too_large, body_too_slow, problem, problem_of
from controlplane.errors import WarmpoolError
from controlplane.ids import new_id
from controlplane.metrics import Metrics

log = logging.getLogger(__name__)
STARTED = "warmpool.started"
_FILES = re.compile(r"/v1/sessions/[^/]+/files")
_STDIN = re.compile(r"/v1/sessions/[^/]+/exec/[^/]+/stdin")
# Input is read whole before it goes on, and sandboxd takes no more than this at a time.
MAX_STDIN_BYTES = 4 * 1024 * 1024
# Longer JSON bodies are read only for a caller with a key: anybody could fill the memory with them otherwise.
FREE_BODY_BYTES = 16 * 1024
BODY_WITHIN_S = 30.0
UPLOAD_SILENCE_S = 60.0
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Edge:
    """``max_body_bytes`` for JSON, which is read whole and within ``body_within_s``; ``max_upload_bytes`` for files,
    which are streamed. ``authenticate`` proves the text of a key, or raises Denied."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        authenticate: Callable[[str], Awaitable[object]],
        *,
        max_body_bytes: int,
        max_upload_bytes: int,
        body_within_s: float = BODY_WITHIN_S,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._authenticate = authenticate
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes
        self._body_within_s = body_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = scope[STARTED] = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._metrics.answered(_method(scope), route_of(scope), status, time.monotonic() - started)
            await send(message)

        limit = self._limit_of(scope["path"])
        try:
            if _declared(scope) > limit:
                raise BodyTooLarge(limit)
            upload = _FILES.fullmatch(scope["path"]) is not None
            if not upload and _declared(scope, unknown=limit) > FREE_BODY_BYTES:
                await self._authenticate(bearer_of(scope))
            body = _Bounded(receive, limit, within_s=None if upload else self._body_within_s)
            await self._app(scope, body, sending)
        except Exception as error:
            if status:
                # Too late for another answer: the server cuts the connection, so that the client knows.
                log.warning("answer of %s %s broke off: %s", _method(scope), route_of(scope), error)
                raise
            await self._last_resort(scope, receive, sending, error)

    def _limit_of(self, path: str) -> int:
        if _FILES.fullmatch(path):
            return self._max_upload_bytes
        return min(MAX_STDIN_BYTES, self._max_upload_bytes) if _STDIN.fullmatch(path) else self._max_body_bytes

    async def _last_resort(self, scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
        if isinstance(error, BodyTooLarge | BodyTooSlow | WarmpoolError):
            await _refusal(error)(scope, receive, send)
            return
        fault = new_id("fault")
        log.error("%s: %s %s failed", fault, _method(scope), route_of(scope), exc_info=error)
        answer = problem(
            500,
            "internal_error",
            f"The request failed by a fault of this service ({fault}).",
            hint="Tell its operator this id: the log has the details.",
        )
        await answer(scope, receive, send)


class _Bounded:
    """``receive`` that raises once a body is longer than its limit, declared or not, or too slow: as a whole with
    ``within_s``, else between two pieces."""

    __slots__ = ("_deadline", "_done", "_limit", "_receive", "_size")

    def __init__(self, receive: Receive, limit: int, *, within_s: float | None) -> None:
        self._receive = receive
        self._limit = limit
        self._deadline = None if within_s is None else asyncio.get_running_loop().time() + within_s
        self._size = 0
        self._done = False

    async def __call__(self) -> Message:
        if self._done:
            # Only the end of the connection is to come.
            return await self._receive()
        until = self._deadline
        if until is None:
            until = asyncio.get_running_loop().time() + UPLOAD_SILENCE_S
        try:
            async with asyncio.timeout_at(until):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._done = not message.get("more_body", False)
            if self._size > self._limit:
                raise BodyTooLarge(self._limit)
        return message


def bearer_of(scope: Scope) -> str:
    """The text after ``Bearer`` in Authorization; empty without one."""
    value = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
    scheme, _, text = value.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _refusal(error: BodyTooLarge | BodyTooSlow | WarmpoolError) -> ASGIApp:
    if isinstance(error, BodyTooLarge):
        return body_too_large(error)
    return body_too_slow() if isinstance(error, BodyTooSlow) else problem_of(error)


def route_of(scope: Scope) -> str:
    """The route's template: a bounded set, unlike paths."""
    return getattr(scope.get("route"), "path", "unmatched")


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else "other"


def _declared(scope: Scope, unknown: int = 0) -> int:
    """The body's length; ``unknown`` for one that comes in chunks."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
        if name == b"transfer-encoding":
            return unknown
    return 0
