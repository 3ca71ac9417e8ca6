"""The client against a small server that speaks the protocol, and against peers that mean harm."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from agents.wire import ExecStart
from controlplane.agentclient.dispatch import DispatchingAgent
from controlplane.agentclient.doorpool import DoorPool
from controlplane.agentclient.port import Door
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.errors import Conflict, Denied, NotFound, Permanent, Retryable
from controlplane.ids import SandboxId, SessionId
from tests.agentclient.daemon import Daemon, event_line, serving

SECRET = b"s" * 32
SANDBOX = SandboxId("sb-1")
SESSION = SessionId("se-1")


@pytest.fixture
def daemon() -> Daemon:
    return Daemon(SECRET, SANDBOX)


@pytest.fixture
def door(daemon: Daemon, tmp_path: Path) -> Iterator[Door]:
    with serving(daemon.app(), tmp_path / "door"):
        yield Door(SANDBOX, f"unix:{tmp_path}/door")


@pytest.fixture
async def client() -> AsyncIterator[UnixAgentClient]:
    client = UnixAgentClient(SECRET, call_timeout_s=5.0, bind_timeout_s=5.0)
    yield client
    await client.close()


@contextmanager
def peer_that_sends(path: Path, answer: bytes) -> Iterator[None]:
    """A peer that answers every connection's first bytes with ``answer`` and hangs up."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(8)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(answer)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


async def test_bind_is_idempotent_and_a_second_claim_is_refused(
    client: UnixAgentClient, door: Door, daemon: Daemon
) -> None:
    first = await client.bind(door, SESSION, "acme", {"A": "1"}, {"k": "v"})
    again = await client.bind(door, SESSION, "acme", {"A": "1"}, {"k": "v"})
    assert (first.first, again.first, again.claim_id) == (True, False, SESSION)
    with pytest.raises(Conflict) as refused:
        await client.bind(door, SessionId("se-2"), "acme", {}, {})
    assert refused.value.code == "already_bound"


async def test_a_sandbox_can_name_only_the_session_that_was_bound_to_it(
    client: UnixAgentClient, door: Door, daemon: Daemon
) -> None:
    await client.bind(door, SESSION, "acme", {}, {"a": "b"})
    held = await client.binding(door)
    assert (held.claim_id, held.tenant, held.labels) == (SESSION, "acme", {"a": "b"})
    for claim_id, tenant, proof in (
        ("se-2", "acme", held.proof),
        (SESSION, "other", held.proof),
        (SESSION, "acme", ""),
    ):
        daemon.held = msgspec.structs.replace(held, claim_id=claim_id, tenant=tenant, proof=proof)
        with pytest.raises(Permanent) as caught:
            await client.binding(door)
        assert caught.value.code == "binding_not_proven"
    daemon.held = msgspec.structs.replace(held, claim_id=None, tenant=None, proof="")
    assert (await client.binding(door)).claim_id is None


async def test_calls_speak_for_their_session_and_only_as_the_system_when_asked(
    client: UnixAgentClient, door: Door, daemon: Daemon
) -> None:
    await client.bind(door, SESSION, "acme", {}, {})
    status = await client.exec_start(door, SESSION, ExecStart(id="e1", script="true"))
    assert status.id == "e1"
    assert daemon.subjects == ["system", "se-1"]
    with pytest.raises(Denied):
        await client.exec_start(door, SessionId("se-2"), ExecStart(id="e2", script="true"))


async def test_a_token_of_another_deployment_is_refused(door: Door) -> None:
    stranger = UnixAgentClient(b"x" * 32)
    with pytest.raises(Denied):
        await stranger.bind(door, SESSION, "acme", {}, {})
    await stranger.close()


async def test_errors_of_sandboxd_keep_their_code(client: UnixAgentClient, door: Door) -> None:
    with pytest.raises(Permanent) as outside:
        await client.exec_start(door, None, ExecStart(id="e1", script="true", cwd="/outside"))
    assert (outside.value.code, outside.value.hint) == ("CWD_OUTSIDE", "a hint")
    with pytest.raises(NotFound) as missing:
        await client.exec_events(door, None, "none", 0, 0)
    assert missing.value.code == "exec_not_found"


async def test_another_protocol_version_is_named(client: UnixAgentClient, door: Door, daemon: Daemon) -> None:
    assert (await client.hello(door)).sandbox_id == SANDBOX
    daemon.protocol = 99
    with pytest.raises(Permanent) as mismatch:
        await client.hello(door)
    assert mismatch.value.code == "protocol_mismatch"


async def test_a_stream_yields_events_up_to_closed(client: UnixAgentClient, door: Door, daemon: Daemon) -> None:
    whole = event_line(6) + event_line(7, "closed")
    daemon.lines = [whole[:10], whole[10:40], whole[40:]]
    events = [e async for e in client.exec_stream(door, None, "e1", 5)]
    assert [(e.seq, e.kind) for e in events] == [(6, "stdout"), (7, "closed")]


@pytest.mark.parametrize(
    "lines",
    [
        [event_line(1)],
        [event_line(1), event_line(3, "closed")],
        [event_line(1), b"not json\n"],
        [event_line(1), event_line(2)[:-9]],
    ],
    ids=["ends early", "a hole", "not an event", "cut within a line"],
)
async def test_a_stream_that_does_not_reach_closed_whole_is_broken(
    client: UnixAgentClient, door: Door, daemon: Daemon, lines: list[bytes]
) -> None:
    daemon.lines = lines
    seen = []
    with pytest.raises(Retryable) as broken:
        async for event in client.exec_stream(door, None, "e1", 0):
            seen.append(event.seq)
    assert seen == [1]
    assert broken.value.code == "stream_broken"
    assert "after=1" in broken.value.hint


async def test_files_go_both_ways_larger_than_any_buffer(client: UnixAgentClient, door: Door, daemon: Daemon) -> None:
    block = bytes(range(256)) * 512
    blocks = 40

    async def upload() -> AsyncIterator[bytes]:
        for _ in range(blocks):
            yield block
        yield b""

    info = await client.file_write(door, None, "/w/ä b", upload(), "0600")
    assert (info.path, info.size) == ("/w/ä b", len(block) * blocks)
    read = b"".join([c async for c in client.file_read(door, None, "/w/ä b")])
    assert read == block * blocks
    assert [e.path for e in (await client.file_list(door, None, "/w")).entries] == ["/w/ä b"]
    await client.file_delete(door, None, "/w/ä b", False)
    with pytest.raises(NotFound):
        await anext(aiter(client.file_read(door, None, "/w/ä b")))


async def test_an_upload_that_is_refused_early_raises_the_refusal(client: UnixAgentClient, door: Door) -> None:
    async def upload() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65536

    with pytest.raises(Retryable) as full:
        await client.file_write(door, None, "/full", upload(), None)
    assert full.value.code in ("disk_full", "sandbox_unreachable")


async def test_an_upload_whose_source_fails_leaves_no_file(client: UnixAgentClient, door: Door, daemon: Daemon) -> None:
    class SourceGone(Exception):
        pass

    async def upload() -> AsyncIterator[bytes]:
        yield b"x" * 10
        raise SourceGone

    with pytest.raises(SourceGone):
        await client.file_write(door, None, "/half", upload(), None)
    assert await client.file_list(door, None, "/")
    assert "/half" not in daemon.files


async def test_stdin_is_passed_as_it_is(client: UnixAgentClient, door: Door, daemon: Daemon) -> None:
    await client.exec_stdin(door, None, "e1", b"\x00\xff", True)
    assert daemon.stdin == [(b"\x00\xff", True)]


async def test_a_resting_connection_is_used_again_and_closes_when_idle(door: Door, daemon: Daemon) -> None:
    pool = DoorPool(idle_s=0.05)
    client = UnixAgentClient(SECRET, pool=pool)
    await client.hello(door)
    connection, used = await pool.acquire(door)
    assert used
    pool.release(door, connection)
    for _ in range(200):
        if not connection.reusable:
            break
        await asyncio.sleep(0.01)
    assert not connection.reusable
    await client.close()


async def test_calls_to_one_sandbox_are_bounded(door: Door) -> None:
    pool = DoorPool(max_per_sandbox=1)
    client = UnixAgentClient(SECRET, pool=pool)
    connection, _ = await pool.acquire(door)
    with pytest.raises(Retryable) as busy:
        await client.hello(door)
    assert busy.value.code == "sandbox_busy"
    pool.release(door, connection)
    assert await client.hello(door)
    await client.close()


async def test_a_daemon_that_restarted_is_reached_again_without_an_error(tmp_path: Path) -> None:
    daemon, door, client = Daemon(SECRET, SANDBOX), Door(SANDBOX, f"unix:{tmp_path}/door"), UnixAgentClient(SECRET)
    for _ in range(2):
        with serving(daemon.app(), tmp_path / "door"):
            assert await client.bind(door, SESSION, "acme", {}, {})
    await client.close()


async def test_a_door_replaced_by_a_symlink_to_a_host_socket_is_not_followed(
    client: UnixAgentClient, door: Door, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "fake").symlink_to(tmp_path / "door")
    with pytest.raises(Permanent) as replaced:
        await client.bind(Door(SANDBOX, f"unix:{tmp_path}/fake"), SESSION, "acme", {}, {})
    assert replaced.value.code == "door_replaced"
    assert daemon.binds == 0


@pytest.mark.parametrize("make", ["nothing", "file", "directory", "dead socket"])
async def test_nobody_at_the_door_is_a_typed_error(client: UnixAgentClient, tmp_path: Path, make: str) -> None:
    path = tmp_path / "door"
    if make == "file":
        path.write_text("x")
    elif make == "directory":
        path.mkdir()
    elif make == "dead socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    with pytest.raises((Retryable, Permanent)) as error:
        await client.hello(Door(SANDBOX, f"unix:{path}"))
    assert error.value.code in ("sandbox_unreachable", "door_replaced")


async def test_a_peer_that_never_answers_is_given_up(tmp_path: Path) -> None:
    client = UnixAgentClient(SECRET, bind_timeout_s=0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "door"))
        silent.listen(1)
        with pytest.raises(Retryable) as gone:
            await client.bind(Door(SANDBOX, f"unix:{tmp_path}/door"), SESSION, "acme", {}, {})
    assert gone.value.code == "sandbox_unreachable"
    await client.close()


@pytest.mark.parametrize(
    ("answer", "codes"),
    [
        (b"", {"sandbox_unreachable"}),
        (b"garbage\r\n\r\n", {"sandbox_unreachable"}),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 600_000, {"sandbox_unreachable"}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", {"stream_broken"}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", {"protocol_mismatch"}),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n",
            {"protocol_mismatch", "stream_broken"},
        ),
        (b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nboo", {"sandbox_error"}),
    ],
    ids=["hangs up", "not http", "endless head", "cut body", "not a Hello", "two answers", "not a Problem"],
)
async def test_an_answer_that_is_not_the_protocol_is_a_typed_error(
    client: UnixAgentClient, tmp_path: Path, answer: bytes, codes: set[str]
) -> None:
    with (
        peer_that_sends(tmp_path / "door", answer),
        pytest.raises((Retryable, Permanent)) as error,
    ):
        await client.hello(Door(SANDBOX, f"unix:{tmp_path}/door"))
    assert error.value.code in codes


async def test_doors_are_spoken_to_by_the_client_of_their_scheme(client: UnixAgentClient, door: Door) -> None:
    agent = DispatchingAgent({"unix": client})
    assert (await agent.hello(door)).sandbox_id == SANDBOX
    with pytest.raises(Permanent) as unknown:
        await agent.hello(Door(SANDBOX, "vsock:3"))
    assert unknown.value.code == "door_address_unknown"
