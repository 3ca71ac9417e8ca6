"""A gateway in the test's own process, whose names and upstreams are fixtures, and ways to talk to it.

Fixture names resolve to public addresses, so the check of addresses is the real one; the connector maps a
pair of address and port to a fixture server on loopback and records every dial.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType

import h11
import msgspec

from agents.egress.addresses import Address
from agents.egress.audit import Row
from agents.egress.control import ControlServer
from agents.egress.dial import DirectDialer, Streams, TcpConnector
from agents.egress.limits import Limits
from agents.egress.listener import Shared
from agents.egress.registry import DoorRegistry
from agents.egress.state import DoorStore
from agents.wire.egress import DoorSpec

DEADLINE_S = 20.0
PUBLIC = "93.184.216.34"
OTHER_PUBLIC = "93.184.216.35"


@dataclass
class FixtureResolver:
    """``answers`` by name; every look-up is noted in ``queries``."""

    answers: dict[str, list[str]] = field(default_factory=dict)
    queries: list[str] = field(default_factory=list)
    hang: bool = False

    async def resolve(self, host: str) -> Sequence[Address]:
        self.queries.append(host)
        if self.hang:
            await asyncio.Event().wait()
        if host not in self.answers:
            raise OSError(f"no such fixture name {host}")
        return [ip_address(text) for text in self.answers[host]]


@dataclass
class FixtureConnector:
    """``routes`` maps (address, port) to a port on loopback; everything else refuses."""

    routes: dict[tuple[str, int], int] = field(default_factory=dict)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    hang: set[str] = field(default_factory=set)

    async def connect(self, address: str, port: int) -> Streams:
        self.dialled.append((address, port))
        if address in self.hang:
            await asyncio.Event().wait()
        if (address, port) not in self.routes:
            raise ConnectionRefusedError(111, "Connection refused")
        return await TcpConnector().connect("127.0.0.1", self.routes[address, port])


@dataclass
class ListSink:
    rows: list[Row] = field(default_factory=list)
    lost: int = 0

    def write(self, row: Row) -> None:
        self.rows.append(row)

    def of(self, outcome: str) -> list[Row]:
        return [row for row in self.rows if row.outcome == outcome]


class Gateway:
    """Everything but the process: ``async with Gateway() as gateway``."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eg-"))
        self.control = self.folder / "control.sock"
        self.resolver = FixtureResolver()
        self.connector = FixtureConnector()
        self.audit = ListSink()
        self.limits = limits or Limits(head_s=5.0, linger_s=1.0)
        self.dialer = DirectDialer(resolver=self.resolver, connector=self.connector, limits=self.limits)

    async def __aenter__(self) -> Gateway:
        shared = Shared(dialer=self.dialer, audit=self.audit, limits=self.limits, now=time.time)
        self.store = DoorStore(self.folder / "state")
        self.registry = DoorRegistry(store=self.store, doors_dir=self.folder / "doors", shared=shared)
        self.server = ControlServer(self.registry, self.control)
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.close()
        await self.registry.close()
        self.store.close()
        shutil.rmtree(self.folder)

    async def door(self, *allow: str, name: str = "sb-1") -> Path:
        """Opens door ``name`` and gives the path of its socket."""
        (self.folder / "doors" / name).mkdir(parents=True, exist_ok=True)
        report = await self.registry.put(name, DoorSpec(allow=list(allow)))
        return Path(report.socket_path)

    def serve_name(self, name: str, port: int, upstream_port: int, address: str = PUBLIC) -> None:
        """``name`` resolves to ``address``, where ``port`` is the fixture server at ``upstream_port``."""
        self.resolver.answers[name] = [address]
        self.connector.routes[address, port] = upstream_port


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tcp_server(handler: Handler) -> AsyncIterator[int]:
    """A server on loopback; gives its port. The handler's connection closes when it returns."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@dataclass
class HttpUpstream:
    """Takes one request per connection, remembers it as it came, and sends ``answer`` as it stands."""

    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    requests: list[h11.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    raw: bytes = b""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(65536)
                self.raw += data
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                self.requests.append(event)
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
        self.bodies.append(body)
        writer.write(self.answer)
        await writer.drain()

    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.requests[-1].headers}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(msgspec.json.decode(self.body)["code"])


class Client:
    """A client at a door: ``async with Client(path) as client``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_unix_connection(str(self._path))
        self._replies = h11.Connection(h11.CLIENT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, method: str = "GET") -> Reply:
        """The next whole answer."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        parser.send(h11.EndOfMessage())
        head, body = None, b""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    # Byte by byte, so that nothing of what follows the answer is taken.
                    parser.receive_data(await self.reader.read(1))
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
        assert head is not None
        headers = {name.decode(): value.decode() for name, value in head.headers}
        return Reply(status=head.status_code, headers=headers, body=body)

    async def rest(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read(-1)

    async def connect(self, target: str) -> None:
        """Opens a tunnel; fails unless it is granted."""
        await self.send(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head


async def ask(path: Path, raw: bytes) -> Reply:
    """One request on a connection of its own."""
    async with Client(path) as client:
        await client.send(raw)
        return await client.reply()


def connect_request(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for ``condition``, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.005)
