"""The client against the real daemon: what both sides mean by the protocol is the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agents.wire import ExecStart, SignalRequest, sandbox_key
from controlplane.agentclient.port import Door
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.errors import Conflict, NotFound, Permanent, Retryable
from controlplane.ids import SandboxId, SessionId
from tests.sandboxd.daemon import Daemon, running

SECRET = b"deployment secret"
SANDBOX = SandboxId("sb-real")
SESSION = SessionId("se-1")


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    # With control groups, so that what a killed daemon leaves is ended.
    async with running(sandbox_id=SANDBOX, key_hex=sandbox_key(SECRET, SANDBOX).hex()) as started:
        yield started


@pytest.fixture
def door(daemon: Daemon) -> Door:
    return Door(SANDBOX, f"unix:{daemon.folder}/door.sock")


@pytest.fixture
async def client() -> AsyncIterator[UnixAgentClient]:
    client = UnixAgentClient(SECRET, bind_timeout_s=10.0)
    yield client
    await client.close()


async def test_the_life_of_a_session_over_a_real_door(client: UnixAgentClient, door: Door) -> None:
    assert (await client.hello(door)).sandbox_id == SANDBOX
    assert (await client.ready(door, 20.0)).ready
    assert (await client.binding(door)).claim_id is None
    bound = await client.bind(door, SESSION, "acme", {"WHO": "world"}, {"run": "1"})
    assert bound.first and not (await client.bind(door, SESSION, "acme", {"WHO": "world"}, {"run": "1"})).first
    with pytest.raises(Conflict) as second:
        await client.bind(door, SessionId("se-2"), "acme", {}, {})
    assert second.value.code == "already_bound"
    held = await client.binding(door)
    assert (held.claim_id, held.tenant, held.labels) == (SESSION, "acme", {"run": "1"})
    await client.exec_start(door, SESSION, ExecStart(id="e1", script='echo "hello $WHO"; exit 3'))
    events = [event async for event in client.exec_stream(door, SESSION, "e1", 0)]
    assert "".join(e.text or "" for e in events if e.kind == "stdout") == "hello world\n"
    status = await client.exec_status(door, SESSION, "e1")
    assert (status.state, status.code) == ("closed", 3)
    page = await client.exec_events(door, SESSION, "e1", 0, 0.0, 2)
    assert [e.seq for e in page.events] == [1, 2] and not page.complete
    assert [c.id for c in (await client.exec_list(door, SESSION)).commands] == ["e1"]


async def test_input_and_signals_reach_a_real_command(client: UnixAgentClient, door: Door) -> None:
    await client.bind(door, SESSION, "acme", {}, {})
    await client.exec_start(door, SESSION, ExecStart(id="cat", script="cat", stdin_open=True))
    await client.exec_stdin(door, SESSION, "cat", b"one ", False)
    await client.exec_stdin(door, SESSION, "cat", b"two", True)
    events = [event async for event in client.exec_stream(door, SESSION, "cat", 0)]
    assert "".join(e.text or "" for e in events if e.kind == "stdout") == "one two"
    await client.exec_start(door, SESSION, ExecStart(id="long", script="sleep 1000"))
    await client.exec_signal(door, SESSION, "long", SignalRequest(signal="TERM", cancel=True))
    last = [event async for event in client.exec_stream(door, SESSION, "long", 0)][-1]
    assert last.kind == "closed" and last.status is not None and last.status.reason == "cancelled"


async def test_files_go_both_ways_over_a_real_door(client: UnixAgentClient, door: Door, daemon: Daemon) -> None:
    await client.bind(door, SESSION, "acme", {}, {})
    block = bytes(range(256)) * 1024

    async def upload() -> AsyncIterator[bytes]:
        for _ in range(16):
            yield block

    info = await client.file_write(door, SESSION, "sub/ä b.bin", upload(), "0640")
    assert (info.size, info.mode) == (len(block) * 16, "0640")
    assert b"".join([part async for part in client.file_read(door, SESSION, "sub/ä b.bin")]) == block * 16
    assert len((await client.file_list(door, SESSION, "sub")).entries) == 1
    await client.file_delete(door, SESSION, "sub", True)
    with pytest.raises(NotFound) as missing:
        await anext(aiter(client.file_read(door, SESSION, "sub/ä b.bin")))
    assert missing.value.code == "FILE_NOT_FOUND"


async def test_refusals_of_the_real_daemon_keep_their_kind(client: UnixAgentClient, door: Door) -> None:
    await client.bind(door, SESSION, "acme", {}, {})
    with pytest.raises(NotFound) as unknown:
        await client.exec_status(door, SESSION, "none")
    assert unknown.value.code == "exec_not_found"
    with pytest.raises(Permanent):
        await client.exec_start(door, SESSION, ExecStart(id="both", script="a", argv=["b"]))
    with pytest.raises(Permanent):
        await client.exec_start(door, SESSION, ExecStart(id="out", script="true", cwd="/etc"))


async def test_a_daemon_that_is_killed_while_it_streams_breaks_the_stream(
    client: UnixAgentClient, door: Door, daemon: Daemon
) -> None:
    await client.bind(door, SESSION, "acme", {}, {})
    await client.exec_start(door, SESSION, ExecStart(id="e1", script="echo begin; sleep 1000"))
    with pytest.raises(Retryable) as broken:
        async for event in client.exec_stream(door, SESSION, "e1", 0):
            if event.kind == "stdout":
                daemon.process.kill()
    assert broken.value.code == "stream_broken"
    with pytest.raises(Retryable) as gone:
        await client.hello(door)
    assert gone.value.code == "sandbox_unreachable"
