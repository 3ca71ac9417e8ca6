"""A small server that speaks the sandboxd protocol on a Unix socket, to test the client against.

It keeps what it was asked, so that tests can look; files live in memory. Started in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agents.wire import (
    PROTOCOL_VERSION,
    Bind,
    Binding,
    Bound,
    EventPage,
    ExecEvent,
    ExecStart,
    ExecStatus,
    FileInfo,
    FileList,
    Hello,
    Problem,
    TokenError,
    sandbox_key,
    verify,
)


def answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refuse(status: int, code: str) -> Response:
    return answer(Problem(code=code, detail=f"{code} happened", hint="a hint"), status)


class Daemon:
    """``protocol`` and ``lines`` (of a stream) are for tests to change."""

    def __init__(self, secret: bytes, sandbox: str) -> None:
        self.key = sandbox_key(secret, sandbox)
        self.sandbox = sandbox
        self.protocol = PROTOCOL_VERSION
        self.lines: list[bytes] = []
        self.claim: str | None = None
        self.binds = 0
        self.held: Binding | None = None
        self.subjects: list[str] = []
        self.files: dict[str, bytes] = {}
        self.stdin: list[tuple[bytes, bool]] = []
        self.connections: set[object] = set()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/hello", self.hello),
                Route("/v1/bind", self.bind, methods=["POST"]),
                Route("/v1/binding", self.binding),
                Route("/v1/exec", self.exec, methods=["POST"]),
                Route("/v1/exec/{id}/events", self.events),
                Route("/v1/exec/{id}/stream", self.stream),
                Route("/v1/exec/{id}/stdin", self.write_stdin, methods=["POST"]),
                Route("/v1/files/list", self.list_files),
                Route("/v1/files", self.files_route, methods=["GET", "PUT", "DELETE"]),
            ]
        )

    def subject(self, request: Request) -> str | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        try:
            subject = verify(self.key, self.sandbox, token, time.time())
        except TokenError:
            return None
        self.subjects.append(subject)
        return subject

    async def hello(self, request: Request) -> Response:
        return answer(
            Hello(protocol=self.protocol, daemon_version="1", sandbox_id=self.sandbox, boot_id="b", python="3")
        )

    async def bind(self, request: Request) -> Response:
        if self.subject(request) != "system":
            return refuse(401, "bad_token")
        bind = msgspec.json.decode(await request.body(), type=Bind)
        if self.claim not in (None, bind.claim_id):
            return refuse(409, "already_bound")
        first, self.claim = self.claim is None, bind.claim_id
        self.held = Binding(
            sandbox_id=self.sandbox,
            claim_id=bind.claim_id,
            tenant=bind.tenant,
            labels=bind.labels,
            bound_at=1.0,
            last_activity_at=1.0,
            running=0,
            proof=bind.proof,
        )
        self.binds += 1
        return answer(Bound(claim_id=bind.claim_id, first=first, bound_at=time.time()))

    async def binding(self, request: Request) -> Response:
        return answer(self.held)

    async def exec(self, request: Request) -> Response:
        subject = self.subject(request)
        if subject not in ("system", self.claim):
            return refuse(403, "not_this_session")
        start = msgspec.json.decode(await request.body(), type=ExecStart)
        if start.cwd == "/outside":
            return refuse(400, "CWD_OUTSIDE")
        return answer(ExecStatus(id=start.id, state="running", last_seq=0, started_at=time.time()))

    async def events(self, request: Request) -> Response:
        if request.path_params["id"] == "none":
            return refuse(404, "exec_not_found")
        await asyncio.sleep(float(request.query_params["wait_s"]))
        return answer(EventPage(events=[], next_after=int(request.query_params["after"]), complete=True))

    async def stream(self, request: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            for line in self.lines:
                yield line

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def write_stdin(self, request: Request) -> Response:
        self.stdin.append((await request.body(), request.query_params["eof"] == "1"))
        return Response(status_code=204)

    async def list_files(self, request: Request) -> Response:
        path = request.query_params["path"]
        return answer(FileList(path=path, entries=[_info(p, d) for p, d in self.files.items()]))

    async def files_route(self, request: Request) -> Response:
        path = request.query_params["path"]
        if request.method == "PUT":
            if path == "/full":
                return refuse(507, "disk_full")  # Answered before the upload was read.
            self.files[path] = await request.body()
            return answer(_info(path, self.files[path]))
        if request.method == "DELETE":
            self.files.pop(path, None)
            return Response(status_code=204)
        if path not in self.files:
            return refuse(404, "FILE_NOT_FOUND")

        async def parts() -> AsyncIterator[bytes]:
            data = self.files[path]
            for start in range(0, len(data), 65536):
                yield data[start : start + 65536]

        return StreamingResponse(parts(), media_type="application/octet-stream")


def _info(path: str, data: bytes) -> FileInfo:
    return FileInfo(path=path, kind="file", size=len(data), mode="0644", modified_at=1.0)


def event_line(seq: int, kind: str = "stdout") -> bytes:
    return msgspec.json.encode(ExecEvent(seq=seq, kind=kind, at=1.0, text="x")) + b"\n"  # type: ignore[arg-type]


@contextmanager
def serving(app: Any, path: Path) -> Iterator[None]:
    """Serve ``app`` on the Unix socket ``path`` until the block ends."""
    server = uvicorn.Server(uvicorn.Config(app, uds=str(path), log_level="error", loop="uvloop", http="httptools"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)
