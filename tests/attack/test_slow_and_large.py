"""What a peer without a key may cost: no head without end, no body for nothing, no connection held for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from controlplane.api.deps import ApiLimits
from controlplane.api.heads import MAX_HEAD_BYTES, BoundedHeads
from controlplane.store.redis_store import RedisStore
from tests.api.service import Api, Wiring, running
from tests.store.world import World

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Impatient(BoundedHeads):
    head_within_s = 0.3


async def nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("no request was made")


@contextlib.contextmanager
def impatient() -> Iterator[int]:
    """The port of a server that waits 0.3 s for a head."""
    config = uvicorn.Config(nothing, port=0, http=Impatient, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)


async def connect(url: str) -> Streams:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def answer(reader: asyncio.StreamReader, within_s: float = 20.0) -> bytes:
    async with asyncio.timeout(within_s):
        return await reader.read(4096)


@pytest.mark.parametrize("start", [b"X-Long: ", b""])
async def test_a_head_without_end_is_cut(api: Api, start: bytes) -> None:
    reader, writer = await connect(api.url)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + start)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 1024 * MAX_HEAD_BYTES and not reader.at_eof():
            writer.write(b"a" * 8000 if start else b"X-Short: " + b"a" * 7989 + b"\r\n")
            await writer.drain()
            sent += 8000
            await asyncio.sleep(0)
    with contextlib.suppress(ConnectionError):
        assert b" 431 " in await answer(reader)
    assert sent < 1024 * MAX_HEAD_BYTES


async def test_a_usual_large_head_and_many_requests_on_one_connection_are_served(api: Api) -> None:
    client = api.bare({"X-Large": "a" * 30_000})
    for _ in range(5):
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost:", b"GET /"])
async def test_a_head_that_does_not_come_ends_the_connection(begun: bytes) -> None:
    with impatient() as port:
        reader, writer = await connect(f"http://127.0.0.1:{port}")
        writer.write(begun)
        assert b" 408 " in await answer(reader)


@pytest.mark.parametrize("length", [b"Content-Length: 900000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize(
    "key", [b"", b"Authorization: Bearer wp_0123456789abcdef_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"]
)
async def test_no_large_body_is_read_for_nobody(api: Api, length: bytes, key: bytes) -> None:
    reader, writer = await connect(api.url)
    writer.write(
        b"POST /v1/keys HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + key + length + b"\r\n\r\n"
    )
    assert (await answer(reader)).startswith(b"HTTP/1.1 401 ")


@pytest.fixture
async def hasty(
    valkey_url: str, store: RedisStore, world: World, deployment: str, tmp_path: Path
) -> AsyncIterator[Api]:
    """An API that waits 0.3 s for a JSON body."""
    limits = ApiLimits(body_within_s=0.3)
    async with running(valkey_url, store, world, deployment, tmp_path, Wiring(limits=limits)) as api:
        yield api


@pytest.mark.parametrize("path", ["/v1/keys", "/v1/sessions"])
async def test_a_body_that_does_not_come_is_not_waited_for(hasty: Api, path: str) -> None:
    key = (await hasty.client("operators", "ops")).headers["authorization"]
    reader, writer = await connect(hasty.url)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b'Content-Length: 100\r\n\r\n{"tenant"')
    assert (await answer(reader)).startswith(b"HTTP/1.1 408 ")


async def test_waiting_for_a_session_is_longer_than_for_a_body(hasty: Api) -> None:
    acme: httpx.AsyncClient = await hasty.client()
    waited = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 1.0, "labels": {"a": "b" * 1000}})
    assert waited.status_code == 202, waited.text
