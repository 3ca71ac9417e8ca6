"""The routes of the door in, and the handlers that need no more than the sandbox's own state."""

from __future__ import annotations

import os
import platform

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from agents.sandboxd import VERSION
from agents.sandboxd.auth import Door, require_system
from agents.sandboxd.binding import Holder
from agents.sandboxd.environment import CommandEnvironment
from agents.sandboxd.execs import Commands
from agents.sandboxd.http import Endpoint, Handler, answer, not_found, read_json, seconds
from agents.sandboxd.readiness import Readiness
from agents.sandboxd.routes_exec import ExecRoutes
from agents.sandboxd.routes_files import FileRoutes
from agents.wire import PROTOCOL_VERSION, Bind, Hello

_bind = msgspec.json.Decoder(Bind)


class SandboxRoutes:
    """Handlers for who this is, whether it is ready, and whom it is held by."""

    def __init__(
        self, holder: Holder, readiness: Readiness, environment: CommandEnvironment, commands: Commands
    ) -> None:
        self._holder = holder
        self._readiness = readiness
        self._environment = environment
        self._commands = commands

    async def ready(self, request: Request, subject: str) -> Response:
        return answer(await self._readiness.wait(seconds(request, "wait_s")))

    async def bind(self, request: Request, subject: str) -> Response:
        require_system(subject)
        claim = await read_json(request, _bind)
        self._environment.check(claim.env, "env")
        return answer(self._holder.bind(claim))

    async def binding(self, request: Request, subject: str) -> Response:
        return answer(self._holder.describe(self._commands.running))


class HelloPage:
    """Who answers here. Needs no token: a caller learns from it whether to go on at all."""

    def __init__(self, sandbox_id: str) -> None:
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            daemon_version=VERSION,
            sandbox_id=sandbox_id,
            boot_id=os.urandom(8).hex(),
            python=platform.python_version(),
        )
        self._response = answer(hello)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(scope, receive, send)


def build_app(
    door: Door, holder: Holder, hello: HelloPage, sandbox: SandboxRoutes, execs: ExecRoutes, files: FileRoutes
) -> ASGIApp:
    """The ASGI app. Frequent paths come first, since routes are tried in order."""

    def route(path: str, **handlers: Handler) -> Route:
        return Route(path, Endpoint(door, holder, handlers))

    routes = [
        route("/v1/bind", POST=sandbox.bind),
        route("/v1/exec", POST=execs.start, GET=execs.list),
        route("/v1/exec/{id}", GET=execs.status),
        route("/v1/exec/{id}/events", GET=execs.events),
        route("/v1/exec/{id}/stream", GET=execs.stream),
        route("/v1/exec/{id}/stdin", POST=execs.stdin),
        route("/v1/exec/{id}/signal", POST=execs.signal),
        route("/v1/files", GET=files.read, PUT=files.write, DELETE=files.delete),
        route("/v1/files/list", GET=files.list),
        route("/v1/binding", GET=sandbox.binding),
        route("/v1/ready", GET=sandbox.ready),
        Route("/v1/hello", hello),
    ]
    return Router(routes, redirect_slashes=False, default=not_found)
