"""The control socket, as the control plane's client sees it, and the state that it keeps."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agents.egress.sockets import BindError, bind_listening
from agents.egress.state import DoorStore, StateError
from agents.wire.egress import DoorSpec
from controlplane.egressclient import HttpEgressGateway
from controlplane.errors import Conflict, NotFound, Permanent, Retryable
from controlplane.ids import SandboxId

from .parts import Client, Gateway, ask, connect_request, echo, tcp_server

SB = SandboxId("sb-1")


@pytest_asyncio.fixture
async def client(gateway: Gateway) -> AsyncIterator[HttpEgressGateway]:
    (gateway.folder / "doors" / "sb-1").mkdir(parents=True)
    built = HttpEgressGateway(gateway.control)
    yield built
    await built.aclose()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_door_is_opened_listed_read_and_closed(gateway: Gateway, client: HttpEgressGateway) -> None:
    spec = DoorSpec(allow=["github.com"], labels={"pool": "t/p"})
    opened = await client.put_door(SB, spec)
    path = gateway.folder / "doors" / "sb-1" / "egress.sock"
    assert (opened.socket_path, opened.allow, opened.labels) == (str(path), ["github.com"], {"pool": "t/p"})
    assert await client.get_door(SB) == opened and await client.list_doors() == [opened]
    assert (await client.health()).doors == 1
    await client.delete_door(SB)
    await client.delete_door(SB)
    assert not path.exists() and await client.list_doors() == []
    with pytest.raises(NotFound):
        await client.get_door(SB)


async def test_any_user_can_connect_to_a_door_and_only_the_owner_to_the_control_socket(
    gateway: Gateway, client: HttpEgressGateway
) -> None:
    door = Path((await client.put_door(SB, DoorSpec())).socket_path)
    assert (mode_of(door), mode_of(gateway.control)) == (0o666, 0o600)


async def test_putting_the_same_door_again_changes_nothing(gateway: Gateway, client: HttpEgressGateway) -> None:
    spec = DoorSpec(allow=["a.test"])
    async with tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        door = Path((await client.put_door(SB, spec)).socket_path)
        async with Client(door) as tunnel:
            await tunnel.connect("a.test:443")
            inode = door.stat().st_ino
            assert (await client.put_door(SB, spec)).connections_open == 1
            assert door.stat().st_ino == inode
            await tunnel.send(b"alive")
            assert await tunnel.reader.readexactly(5) == b"alive"
    assert [row.code for row in gateway.audit.of("door")] == ["opened"]


async def test_a_new_policy_replaces_the_old_one_at_once(gateway: Gateway, client: HttpEgressGateway) -> None:
    door = Path((await client.put_door(SB, DoorSpec(allow=["a.test"]))).socket_path)
    assert (await ask(door, connect_request("a.test:443"))).status == 502
    await client.put_door(SB, DoorSpec(allow=["b.test"]))
    assert (await ask(door, connect_request("a.test:443"))).status == 403
    assert (await ask(door, connect_request("b.test:443"))).status == 502


async def test_a_door_moves_to_another_path_when_the_call_names_one(
    gateway: Gateway, client: HttpEgressGateway
) -> None:
    before = Path((await client.put_door(SB, DoorSpec())).socket_path)
    elsewhere = gateway.folder / "other.sock"
    assert (await client.put_door(SB, DoorSpec(socket_path=str(elsewhere)))).socket_path == str(elsewhere)
    assert not before.exists()
    assert (await ask(elsewhere, connect_request("a.test:443"))).status == 403


async def test_a_door_whose_socket_was_removed_is_bound_again_by_the_next_call(
    gateway: Gateway, client: HttpEgressGateway
) -> None:
    door = Path((await client.put_door(SB, DoorSpec())).socket_path)
    door.unlink()
    await client.put_door(SB, DoorSpec())
    assert (await ask(door, connect_request("a.test:443"))).status == 403


async def test_a_path_longer_than_the_kernels_limit_for_sockets_can_be_a_door(
    gateway: Gateway, client: HttpEgressGateway
) -> None:
    folder = gateway.folder / ("long" * 40)
    folder.mkdir()
    await client.put_door(SB, DoorSpec(socket_path=str(folder / "egress.sock")))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        reply = await ask(Path(f"/proc/self/fd/{descriptor}/egress.sock"), connect_request("a.test:443"))
    finally:
        os.close(descriptor)
    assert reply.status == 403


@pytest.mark.parametrize("entry", ["*.com", "https://a.test/", "127.1", "a.test:0"])
async def test_a_bad_entry_refuses_the_call_and_leaves_the_door_as_it_was(
    gateway: Gateway, client: HttpEgressGateway, entry: str
) -> None:
    await client.put_door(SB, DoorSpec(allow=["a.test"]))
    with pytest.raises(Permanent) as caught:
        await client.put_door(SB, DoorSpec(allow=["b.test", entry]))
    assert caught.value.code == "bad_allow_entry" and entry in caught.value.message
    assert (await client.get_door(SB)).allow == ["a.test"]


@pytest.mark.parametrize("name", ["../x", "", "a/b", "UPPER", "-x", "x" * 129, "a.b", "é"])
async def test_an_odd_id_is_refused(client: HttpEgressGateway, name: str) -> None:
    with pytest.raises((Permanent, NotFound)):
        await client.put_door(SandboxId(name), DoorSpec())
    assert await client.list_doors() == []


async def test_a_missing_folder_is_a_typed_conflict(client: HttpEgressGateway) -> None:
    with pytest.raises(Conflict) as caught:
        await client.put_door(SandboxId("sb-2"), DoorSpec())
    assert caught.value.code == "directory_missing"
    assert await client.list_doors() == []


@pytest.mark.parametrize("path", ["relative.sock", "/tmp/../tmp/x.sock", "/"])
async def test_an_odd_socket_path_is_refused(client: HttpEgressGateway, path: str) -> None:
    with pytest.raises(Permanent) as caught:
        await client.put_door(SB, DoorSpec(socket_path=path))
    assert caught.value.code == "invalid_socket_path"


async def test_only_a_socket_is_ever_replaced(gateway: Gateway, client: HttpEgressGateway) -> None:
    precious = gateway.folder / "precious"
    precious.write_text("keep")
    link = gateway.folder / "link"
    link.symlink_to(precious)
    for path in (precious, link):
        with pytest.raises(Conflict) as caught:
            await client.put_door(SB, DoorSpec(socket_path=str(path)))
        assert caught.value.code == "path_in_use"
    assert precious.read_text() == "keep" and link.is_symlink()


async def test_two_doors_cannot_share_a_path(gateway: Gateway, client: HttpEgressGateway) -> None:
    path = str(gateway.folder / "shared.sock")
    await client.put_door(SB, DoorSpec(socket_path=path))
    with pytest.raises(Conflict):
        await client.put_door(SandboxId("sb-2"), DoorSpec(socket_path=path))


async def test_a_folder_that_is_a_symlink_is_not_followed(gateway: Gateway) -> None:
    (gateway.folder / "real").mkdir()
    (gateway.folder / "alias").symlink_to(gateway.folder / "real")
    with pytest.raises(BindError):
        bind_listening(gateway.folder / "alias" / "egress.sock", mode=0o666)


async def test_calls_and_bodies_that_make_no_sense_are_answered_with_a_problem(
    gateway: Gateway, client: HttpEgressGateway
) -> None:
    async def status_of(raw: bytes) -> tuple[int, str]:
        async with Client(gateway.control) as raw_client:
            await raw_client.send(raw)
            reply = await raw_client.reply()
            return reply.status, reply.code

    def put(body: bytes) -> bytes:
        return b"PUT /v1/doors/sb-1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    assert await status_of(b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n") == (404, "no_such_call")
    assert await status_of(b"POST /v1/doors HTTP/1.1\r\nHost: x\r\n\r\n") == (404, "no_such_call")
    assert await status_of(put(b"{")) == (400, "invalid_body")
    assert await status_of(put(b'{"allow": "a.test"}')) == (400, "invalid_body")
    assert await status_of(put(b'{"allowed": []}')) == (400, "invalid_body")
    assert await status_of(put(b" " * 1_100_000)) == (413, "body_too_large")
    assert await status_of(b"nonsense\r\n\r\n") == (400, "bad_request")
    assert (await client.health()).doors == 0


async def test_a_gateway_that_is_not_there_is_a_retryable_error(tmp_path: Path) -> None:
    client = HttpEgressGateway(tmp_path / "none.sock")
    with pytest.raises(Retryable) as caught:
        await client.health()
    await client.aclose()
    assert caught.value.code == "egress_unreachable"


async def test_many_calls_at_once_end_with_every_door_open(gateway: Gateway, client: HttpEgressGateway) -> None:
    names = [SandboxId(f"sb-{number}") for number in range(40)]
    for name in names:
        (gateway.folder / "doors" / name).mkdir(exist_ok=True)
    await asyncio.gather(*(client.put_door(name, DoorSpec(allow=["a.test"])) for name in names))
    assert {report.id for report in await client.list_doors()} == set(names)


async def test_a_door_that_cannot_be_kept_is_not_opened_and_a_policy_that_cannot_is_not_taken(
    gateway: Gateway, client: HttpEgressGateway
) -> None:
    door = Path((await client.put_door(SB, DoorSpec(allow=["a.test"]))).socket_path)
    other = gateway.folder / "doors" / "sb-2"
    other.mkdir()
    (gateway.folder / "state").rename(gateway.folder / "elsewhere")
    for name in (SB, SandboxId("sb-2")):
        with pytest.raises(Retryable) as caught:
            await client.put_door(name, DoorSpec(allow=["b.test"]))
        assert caught.value.code == "egress_failed"
    assert [(report.id, report.allow) for report in await client.list_doors()] == [("sb-1", ["a.test"])]
    assert list(other.iterdir()) == []
    assert (await ask(door, connect_request("b.test:443"))).status == 403
    (gateway.folder / "elsewhere").rename(gateway.folder / "state")
    assert (await client.put_door(SandboxId("sb-2"), DoorSpec(allow=["b.test"]))).allow == ["b.test"]


def test_a_second_gateway_on_the_same_state_is_refused(tmp_path: Path) -> None:
    store = DoorStore(tmp_path / "state")
    with pytest.raises(StateError, match="Another gateway"):
        DoorStore(tmp_path / "state")
    store.close()
    DoorStore(tmp_path / "state").close()
