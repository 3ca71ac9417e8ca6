"""The control socket: a small HTTP/1.1 server for the control plane, on a Unix socket of mode 0600."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import h11
import msgspec

from agents.egress.registry import BadDoor, DoorRegistry
from agents.egress.sockets import BoundSocket, bind_listening
from agents.wire import Problem
from agents.wire.egress import DoorList, DoorSpec

_MAX_BODY_BYTES = 1024 * 1024
_IDLE_S = 600.0
_CHUNK_BYTES = 64 * 1024
_LOG = logging.getLogger("egress.control")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    status: int
    body: bytes = b""


class ControlServer:
    """Serves ``registry`` at ``path`` between ``start`` and ``close``."""

    def __init__(self, registry: DoorRegistry, path: Path) -> None:
        self._registry = registry
        self._path = path
        self._bound: BoundSocket | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises BindError."""
        self._bound = bind_listening(self._path, mode=0o600)
        self._server = await asyncio.start_unix_server(self._accept, sock=self._bound.sock)

    async def close(self) -> None:
        if self._bound is not None:
            self._bound.unlink()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            with contextlib.suppress(OSError, TimeoutError):
                while await self._serve_one(connection, reader, writer):
                    connection.start_next_cycle()
        finally:
            writer.close()

    async def _serve_one(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        try:
            async with asyncio.timeout(_IDLE_S):
                request = await _read_request(connection, reader)
            if request is None:
                return False
            reply = await self._answer(request)
        except h11.RemoteProtocolError as error:
            reply = _problem(400, "bad_request", f"Not a valid request: {error}.")
        except BadDoor as error:
            reply = _problem(error.status, error.code, error.detail, error.hint)
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(reply.body)))]
        events = [h11.Response(status_code=reply.status, headers=headers), h11.Data(data=reply.body)]
        for event in (*events, h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        return _is_reusable(connection)

    async def _answer(self, request: _Request) -> _Reply:
        try:
            return await self._route(request)
        except BadDoor:
            raise
        except Exception:
            # One faulty call must not take the doors of every sandbox down with it.
            _LOG.exception("control call failed: %s %s", request.method, request.path)
            return _problem(500, "internal", "The gateway failed on this call; its log has the reason.")

    async def _route(self, request: _Request) -> _Reply:
        match request.method, request.path.split("/")[1:]:
            case "GET", ["v1", "health"]:
                return _json(self._registry.health())
            case "GET", ["v1", "doors"]:
                return _json(DoorList(doors=self._registry.list()))
            case "PUT", ["v1", "doors", door_id]:
                return _json(await self._registry.put(unquote(door_id), _decode_spec(request.body)))
            case "GET", ["v1", "doors", door_id]:
                return _json(self._registry.get(unquote(door_id)))
            case "DELETE", ["v1", "doors", door_id]:
                await self._registry.delete(unquote(door_id))
                return _Reply(status=204)
            case _:
                raise BadDoor("no_such_call", f"There is no {request.method} {request.path[:80]}.", status=404)


async def _read_request(connection: h11.Connection, reader: asyncio.StreamReader) -> _Request | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MAX_BODY_BYTES:
                raise BadDoor("body_too_large", f"The body is larger than {_MAX_BODY_BYTES} bytes.", status=413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            path = head.target.decode("ascii").partition("?")[0]
            return _Request(method=head.method.decode("ascii"), path=path, body=bytes(body))
        else:
            return None


def _is_reusable(connection: h11.Connection) -> bool:
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


def _decode_spec(body: bytes) -> DoorSpec:
    try:
        return msgspec.json.decode(body, type=DoorSpec)
    except msgspec.DecodeError as error:
        raise BadDoor("invalid_body", f"The body is not a door: {error}.") from error


def _json(body: msgspec.Struct) -> _Reply:
    return _Reply(status=200, body=msgspec.json.encode(body))


def _problem(status: int, code: str, detail: str, hint: str = "") -> _Reply:
    return _Reply(status=status, body=msgspec.json.encode(Problem(code=code, detail=detail, hint=hint)))
