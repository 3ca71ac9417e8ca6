"""A small server of the HTTP contract, on a real socket: what the SDK may rely on, and what it must survive.

State is in memory; commands really run, by this host's shell. ``Faults`` makes it misbehave, a planned number
of times per route: answer with an error, cut a connection, say something else than JSON, say nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.sdk.operations_routes import operations_routes

KEY = "wp_0123456789abcdef_" + "s" * 43


@dataclass
class Fault:
    """``status``: answer with it; ``cut_after``: let so many bytes of the body through, then cut the connection
    (the request takes effect); ``body``: answer 200 with it; ``hang``: say nothing until the client leaves."""

    method: str
    path: str
    status: int | None = None
    code: str = "store_unavailable"
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    body: bytes | None = None
    hang: bool = False


class Cut(Exception):
    """Raised on purpose: uvicorn then closes the connection."""


class Faults:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.planned: list[Fault] = []
        self.seen: list[tuple[str, str, str]] = []

    def plan(self, method: str, path: str, times: int = 1, **how: Any) -> None:
        self.planned += [Fault(method, path, **how) for _ in range(times)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.seen.append((scope["method"], scope["path"], scope["query_string"].decode()))
        fault = next((f for f in self.planned if f.method == scope["method"] and scope["path"].endswith(f.path)), None)
        if fault is None:
            await self.app(scope, receive, send)
            return
        self.planned.remove(fault)
        await self._misbehave(fault, scope, receive, send)

    async def _misbehave(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        if fault.hang:
            while (await receive())["type"] != "http.disconnect":
                pass
        elif fault.status is not None:
            await problem(fault.status, fault.code, "planned", fault.headers)(scope, receive, send)
        elif fault.body is not None:
            await Response(fault.body, media_type="text/html")(scope, receive, send)
        else:
            await self.app(scope, receive, _cutting(send, fault.cut_after or 0))


def _cutting(send: Send, left: int) -> Send:
    async def cut(message: Message) -> None:
        nonlocal left
        if message["type"] == "http.response.start":
            kept = [(n, v) for n, v in message["headers"] if n != b"content-length"]
            await send({**message, "headers": [*kept, (b"content-length", b"100000000")]})
            return
        body = message.get("body", b"")[:left]
        left -= len(body)
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if left <= 0 or not message.get("more_body"):
            raise Cut

    return cut


def problem(status: int, code: str, detail: str, headers: dict[str, str] | None = None, hint: str = "") -> Response:
    body = {"type": "about:blank", "title": code, "status": status, "detail": detail, "code": code, "hint": hint}
    return Response(msgspec.json.encode(body), status, headers, "application/problem+json")


def answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class Contract:
    """Sessions of two pools: ``demo`` has ready sandboxes, ``slow`` has one ``slow_s`` after it was asked,
    ``full`` never has room."""

    def __init__(self) -> None:
        self.slow_s = 0.3
        self.sessions: dict[str, dict[str, Any]] = {}
        self.by_key: dict[str, str] = {}
        self.bodies: list[dict[str, Any]] = []
        self.commands: dict[str, Command] = {}
        self.files: dict[str, bytes] = {}
        self.started = 0

    def close(self) -> None:
        """End every process that commands left."""
        for command in self.commands.values():
            command.stop(None)

    def routes(self) -> list[Route]:
        one = "/v1/sessions/{id}"
        return [
            Route("/v1/sessions", self.attach, methods=["POST"]),
            Route("/v1/sessions", self.list_sessions, methods=["GET"]),
            Route(one, self.get_session, methods=["GET"]),
            Route(one, self.end_session, methods=["DELETE"]),
            Route(one + "/keepalive", self.keepalive, methods=["POST"]),
            Route(one + "/exec", self.start, methods=["POST"]),
            Route(one + "/exec", self.list_commands, methods=["GET"]),
            Route(one + "/exec/{cmd}", self.status, methods=["GET"]),
            Route(one + "/exec/{cmd}/events", self.events, methods=["GET"]),
            Route(one + "/exec/{cmd}/stream", self.stream, methods=["GET"]),
            Route(one + "/exec/{cmd}/stdin", self.stdin, methods=["POST"]),
            Route(one + "/exec/{cmd}/signal", self.signal, methods=["POST"]),
            Route(one + "/files", self.file, methods=["GET", "PUT", "DELETE"]),
            Route(one + "/files/list", self.list_files, methods=["GET"]),
            *operations_routes(),
        ]

    # -- sessions

    async def attach(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return problem(401, "invalid_key", "The key is not known.", hint="Make one with `warmpool key create`.")
        body = await request.json()
        self.bodies.append(body)
        key = request.headers["idempotency-key"]
        if key in self.by_key:
            session = self.sessions[self.by_key[key]]
            return answer(self.shown(session), 201 if session["state"] == "attached" else 202)
        pool = body.get("pool") or body["template"]
        if pool == "full":
            return problem(503, "no_capacity", "There is no room.", {"Retry-After": "30"})
        if pool == "quota":
            return problem(429, "over_quota", "As many sessions as allowed.", {"Retry-After": "5"})
        if pool not in ("demo", "slow", "broken"):
            return problem(404, "pool_not_found", f"There is no pool {pool!r}.", hint="See `warmpool pool ls`.")
        session = self.new_session(pool, body)
        self.by_key[key] = session["id"]
        if pool == "slow":
            await self.until_attached(session, body.get("wait_s", 60))
        return answer(self.shown(session), 201 if session["state"] == "attached" else 202)

    def new_session(self, pool: str, body: dict[str, Any]) -> dict[str, Any]:
        state = {"demo": "attached", "slow": "waiting", "broken": "ended"}[pool]
        session = {
            "id": f"se-{len(self.sessions)}",
            "tenant": "acme",
            "pool": pool,
            "state": state,
            "start": "warm" if pool == "demo" else "cold",
            "start_reason": "ready_in_pool" if pool == "demo" else "pool_empty",
            "labels": body.get("labels", {}),
            "created_at": time.time(),
            "end_reason": "template_failed" if pool == "broken" else None,
            "end_detail": "pip failed" if pool == "broken" else None,
            "timings_ms": {"auth": 0.1, "claim": 0.5, "bind": 0.7, "bound": 0.3, "total": 1.6},
            "a_field_of_a_later_version": 1,
        }
        self.sessions[session["id"]] = session
        return session

    def shown(self, session: dict[str, Any]) -> dict[str, Any]:
        if session["state"] == "waiting" and time.time() - session["created_at"] >= self.slow_s:
            session["state"] = "attached"
        waiting = session["state"] == "waiting"
        return {**session, "queue": {"position": 1, "pool_building": 2, "step": "start"} if waiting else None}

    async def until_attached(self, session: dict[str, Any], wait_s: float) -> None:
        until = time.monotonic() + wait_s
        # It becomes attached by the clock, which sets no event.
        while self.shown(session)["state"] == "waiting" and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def list_sessions(self, request: Request) -> Response:
        wanted = dict(label.split("=", 1) for label in request.query_params.getlist("label"))
        states = request.query_params.get("state", "").split(",")
        found = [
            self.shown(s)
            for s in self.sessions.values()
            if (states == [""] or s["state"] in states) and wanted.items() <= s["labels"].items()
        ]
        return answer({"sessions": found})

    async def get_session(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["id"])
        if session is None:
            return problem(404, "session_not_found", f"There is no session {request.path_params['id']!r}.")
        await self.until_attached(session, float(request.query_params.get("wait_s", 0)))
        return answer(self.shown(session))

    async def end_session(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["id"])
        if session is None:
            return Response(status_code=204)
        if session["state"] != "ended":
            session.update(state="ended", end_reason="deleted")
        return answer(self.shown(session))

    async def keepalive(self, request: Request) -> Response:
        session = self.sessions[request.path_params["id"]]
        ttl = (await request.json())["ttl_s"]
        session.update(ttl_s=ttl, expires_at=time.time() + ttl)
        return answer(self.shown(session))

    # -- commands

    async def start(self, request: Request) -> Response:
        body = await request.json()
        known = self.commands.get(body["id"])
        if known is None:
            self.started += 1
            known = self.commands[body["id"]] = Command(body)
            await known.start()
        return answer(known.status(), 201)

    async def list_commands(self, request: Request) -> Response:
        return answer({"commands": [c.status() for c in self.commands.values()]})

    async def status(self, request: Request) -> Response:
        command = self.commands.get(request.path_params["cmd"])
        return answer(command.status()) if command else problem(404, "exec_not_found", "There is no such command.")

    async def events(self, request: Request) -> Response:
        command = self.commands[request.path_params["cmd"]]
        after = int(request.query_params["after"])
        await command.changed(after, float(request.query_params.get("wait_s", 0)))
        found = command.after(after)
        last = found[-1]["seq"] if found else after
        return answer(
            {"events": found, "next_after": last, "complete": command.closed and last == len(command.history)}
        )

    async def stream(self, request: Request) -> Response:
        command = self.commands.get(request.path_params["cmd"])
        if command is None:
            return problem(404, "exec_not_found", "There is no such command.")

        async def lines() -> AsyncIterator[bytes]:
            after = int(request.query_params.get("after", 0))
            while True:
                for event in command.after(after):
                    after = event["seq"]
                    yield msgspec.json.encode(event) + b"\n"
                if command.closed and after >= len(command.history):
                    return
                await command.changed(after, 5.0)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def stdin(self, request: Request) -> Response:
        command = self.commands[request.path_params["cmd"]]
        await command.write(await request.body(), eof=request.query_params.get("eof") == "1")
        return Response(status_code=204)

    async def signal(self, request: Request) -> Response:
        command = self.commands[request.path_params["cmd"]]
        shown = command.status()
        command.stop("cancelled" if (await request.json()).get("cancel") else None)
        return answer(shown)

    # -- files

    async def file(self, request: Request) -> Response:
        path = request.query_params["path"]
        if request.method == "PUT":
            self.files[path] = await request.body()
            info = {"path": "/workspace/" + path, "kind": "file", "size": len(self.files[path]), "mode": "0644"}
            return answer({**info, "modified_at": time.time()})
        if request.method == "DELETE":
            self.files.pop(path, None)
            return Response(status_code=204)
        if path == "folder":
            return problem(400, "IS_A_DIRECTORY", "The path is a directory.")
        if path not in self.files:
            return problem(404, "FILE_NOT_FOUND", f"{path!r}: There is no such file or directory.")
        return Response(self.files[path], media_type="application/octet-stream")

    async def list_files(self, request: Request) -> Response:
        entries = [
            {"path": "/workspace/" + name, "kind": "file", "size": len(data), "mode": "0644", "modified_at": 1.0}
            for name, data in sorted(self.files.items())
        ]
        return answer({"path": "/workspace", "entries": entries, "truncated": request.query_params["path"] == "huge"})


class Command:
    """A shell command of this host, with its history of events."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.history: list[dict[str, Any]] = []
        self.closed = False
        self.exited: dict[str, Any] = {}
        self._stopped: str | None = None
        self._news = asyncio.Event()

    async def start(self) -> None:
        argv = self.body.get("argv") or ["/bin/sh", "-c", self.body["script"]]
        piped = asyncio.subprocess.PIPE
        env = {"PATH": "/usr/bin:/bin", **self.body.get("env", {})}
        self._process = await asyncio.create_subprocess_exec(
            *argv, stdin=piped, stdout=piped, stderr=piped, cwd=self.body.get("cwd"), env=env, start_new_session=True
        )
        self._add("state", state="running")
        self._life = asyncio.create_task(self._live())

    async def write(self, data: bytes, *, eof: bool) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):  # it has ended meanwhile
            if data:
                self._process.stdin.write(data)
            if eof:
                self._process.stdin.close()

    def stop(self, reason: str | None) -> None:
        self._stopped = reason or "signal"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _live(self) -> None:
        if not self.body.get("stdin_open"):
            await self.write((self.body.get("stdin") or "").encode(), eof=True)
        reading = asyncio.gather(self._read("stdout"), self._read("stderr"))
        try:
            code = await asyncio.wait_for(self._process.wait(), self.body.get("timeout_s"))
        except TimeoutError:
            self.stop("timeout")
            code = await self._process.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading), None if not self._left() else 0.05)
        reason = self._stopped or ("signal" if code < 0 else "exit")
        self.exited = {"code": 124 if reason == "timeout" else code if code >= 0 else 128 - code, "reason": reason}
        self.exited |= {"survivors": [4711] if self._left() else [], "duration_s": 0.1}
        self._add("exited", status={**self.status(), "state": "exited"})
        await reading
        self.closed = True
        self._add("closed", status={**self.status(), "state": "closed"})

    def _left(self) -> bool:
        """Whether something of its process group still runs."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    async def _read(self, stream: str) -> None:
        source, offset = getattr(self._process, stream), 0
        while data := await source.read(4096):
            self._add(stream, text=data.decode("utf-8", "replace"), offset=offset, size=len(data))
            offset += len(data)

    def _add(self, kind: str, **fields: Any) -> None:
        self.history.append({"seq": len(self.history) + 1, "kind": kind, "at": time.time(), **fields})
        self._news.set()
        self._news = asyncio.Event()

    def after(self, seq: int) -> list[dict[str, Any]]:
        return self.history[seq:]

    async def changed(self, after: int, wait_s: float) -> None:
        if len(self.history) <= after and not self.closed and wait_s > 0:
            try:
                await asyncio.wait_for(self._news.wait(), wait_s)
            except TimeoutError:
                return

    def status(self) -> dict[str, Any]:
        state = "closed" if self.closed else "exited" if self.exited else "running"
        shown = {"id": self.body["id"], "state": state, "last_seq": len(self.history), "started_at": 1.0}
        return {**shown, "pid": self._process.pid, "cgroup": "unified", **self.exited}


@dataclass
class Served:
    url: str
    contract: Contract
    faults: Faults

    def reset(self) -> None:
        """As new: nothing attached, nothing planned, no process left."""
        self.contract.close()
        self.contract = Contract()
        self.faults.app = Starlette(routes=self.contract.routes())
        self.faults.planned, self.faults.seen = [], []

    def calls(self, method: str, ending: str) -> int:
        return sum(1 for m, path, _ in self.faults.seen if m == method and path.endswith(ending))


@contextmanager
def serving() -> Iterator[Served]:
    """The contract on a free port of this host, in a thread of its own."""
    contract = Contract()
    faults = Faults(Starlette(routes=contract.routes()))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(faults, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    served = Served(f"http://127.0.0.1:{listener.getsockname()[1]}", contract, faults)
    try:
        yield served
    finally:
        served.contract.close()
        server.should_exit = server.force_exit = True
        thread.join(10)
        listener.close()
