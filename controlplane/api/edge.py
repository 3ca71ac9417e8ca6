"""The outermost layer of every request, as plain ASGI: start time, body limit, metrics, last-resort 500.

Plain ASGI since Starlette's ``BaseHTTPMiddleware`` costs a task and a queue per request.
"""

from __future__ import annotations

import logging
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.api.errors import BodyTooLarge, body_too_large, problem
from controlplane.ids import new_id
from controlplane.metrics import Metrics

log = logging.getLogger(__name__)
STARTED = "warmpool.started"
_FILES = re.compile(r"/v1/sessions/[^/]+/files")
_STDIN = re.compile(r"/v1/sessions/[^/]+/exec/[^/]+/stdin")
# Input is read whole before it goes on, and sandboxd takes no more than this at a time.
MAX_STDIN_BYTES = 4 * 1024 * 1024
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Edge:
    """``max_body_bytes`` for JSON, which is read whole; ``max_upload_bytes`` for files, which are streamed."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, max_body_bytes: int, max_upload_bytes: int) -> None:
        self._app = app
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes

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
            await self._app(scope, _Counted(receive, limit), sending)
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
        if isinstance(error, BodyTooLarge):
            await body_too_large(error)(scope, receive, send)
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


class _Counted:
    """``receive`` that raises once a body is longer than its limit, declared or not."""

    __slots__ = ("_limit", "_receive", "_size")

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > self._limit:
                raise BodyTooLarge(self._limit)
        return message


def route_of(scope: Scope) -> str:
    """The route's template: a bounded set, unlike paths."""
    return getattr(scope.get("route"), "path", "unmatched")


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else "other"


def _declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
