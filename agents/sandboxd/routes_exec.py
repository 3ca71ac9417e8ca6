"""/v1/exec: start, look at, follow, feed and signal commands."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agents.sandboxd.auth import require_system
from agents.sandboxd.commands import Command
from agents.sandboxd.execs import Commands
from agents.sandboxd.http import answer, flag, number, param, read_body, read_json, seconds
from agents.sandboxd.output import History
from agents.sandboxd.pipes import STDIN_PENDING_BYTES
from agents.sandboxd.problems import ProblemError
from agents.wire import ExecList, ExecStart, SignalRequest

MAX_PAGE = 10_000
_STREAM_BATCH = 64
_start = msgspec.json.Decoder(ExecStart)
_signal = msgspec.json.Decoder(SignalRequest)


class ExecRoutes:
    """Handlers; they parse and answer, ``Commands`` does the work."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def start(self, request: Request, subject: str) -> Response:
        spec = await read_json(request, _start)
        if spec.user == "root":
            require_system(subject)
        return answer(await self._commands.start(spec))

    async def list(self, request: Request, subject: str) -> Response:
        return answer(ExecList(commands=self._commands.list()))

    async def status(self, request: Request, subject: str) -> Response:
        return answer(self._command(request).status())

    async def events(self, request: Request, subject: str) -> Response:
        history = self._history(request)
        after = number(request, "after", 0)
        limit = max(1, number(request, "limit", 1000, MAX_PAGE))
        wait_s = seconds(request, "wait_s")
        if wait_s:
            await history.changed(after, wait_s)
        if history.lost:
            raise _lost(self._command(request))
        return answer(history.page(after, limit))

    async def stream(self, request: Request, subject: str) -> Response:
        return EventStream(self._history(request), number(request, "after", 0))

    async def stdin(self, request: Request, subject: str) -> Response:
        command = self._command(request)
        eof = flag(request, "eof")
        command.send_stdin(await read_body(request, STDIN_PENDING_BYTES), eof=eof)
        return Response(status_code=204)

    async def signal(self, request: Request, subject: str) -> Response:
        command = self._command(request)
        command.signal(await read_json(request, _signal))
        return answer(command.status())

    def _command(self, request: Request) -> Command:
        return self._commands.get(param(request, "id"))

    def _history(self, request: Request) -> History:
        command = self._command(request)
        if command.history.lost:
            raise _lost(command)
        return command.history


class EventStream(Response):
    """One event a line until the history is complete or the caller has gone.

    A caller slower than its command sees ``omitted`` events; the command is never held up for it.
    """

    media_type = "application/x-ndjson"

    def __init__(self, history: History, after: int) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._history = history
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while not gone.done():
                page = self._history.page(self._after, _STREAM_BATCH)
                if page.events:
                    lines = msgspec.json.Encoder().encode_lines(page.events)
                    await send({"type": "http.response.body", "body": lines, "more_body": True})
                    self._after = page.next_after
                if page.complete or self._history.lost:
                    break
                if not page.events:
                    await self._more(gone)
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _more(self, gone: asyncio.Future[None]) -> None:
        change = asyncio.ensure_future(self._history.changed(self._after, None))
        await asyncio.wait({change, gone}, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _lost(command: Command) -> ProblemError:
    return ProblemError(
        410,
        "history_lost",
        f"The output of command {command.spec.id!r} is no longer held; its status still is.",
    )
