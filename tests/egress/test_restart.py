"""The gateway as a process: killed without warning, started again, and what it finds then."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.egress.audit import JsonLinesSink, Row
from agents.wire.egress import DoorSpec
from controlplane.errors import Retryable
from controlplane.ids import SandboxId

from .parts import Client, ask, connect_request, echo, tcp_server, until
from .process import START_S, GatewayProcess


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # Not tmp_path, which is named by the test: clients connect by path, and such paths are short.
    made = tmp_path_factory.mktemp("g")
    yield made
    shutil.rmtree(made)


async def test_after_kill_9_connections_fail_and_the_restart_has_the_same_policies(folder: Path) -> None:
    async with tcp_server(echo) as port, tcp_server(echo) as other_port, GatewayProcess(folder) as gateway:
        target, other = f"127.0.0.1:{port}", f"127.0.0.1:{other_port}"
        door = await gateway.open("sb-1", target)
        closed = await gateway.open("sb-2", target)
        await gateway.client.delete_door(SandboxId("sb-2"))
        async with Client(door) as live:
            await live.connect(target)
            await live.send(b"half a requ")
            assert await live.reader.readexactly(11) == b"half a requ"
            gateway.kill()
            with contextlib.suppress(ConnectionResetError):
                assert await live.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(str(door))
        with pytest.raises(Retryable):
            await gateway.client.health()

        await gateway.start()
        assert [(report.id, report.allow) for report in await gateway.client.list_doors()] == [("sb-1", [target])]
        async with Client(door) as again:
            await again.connect(target)
            await again.send(b"hello")
            assert await again.reader.readexactly(5) == b"hello"
        assert (await ask(door, connect_request(other))).status == 403
        assert not closed.exists()


async def test_a_door_whose_folder_has_vanished_is_dropped_at_the_restart(folder: Path) -> None:
    async with GatewayProcess(folder) as gateway:
        gone, stays = await gateway.open("sb-1", "a.test"), await gateway.open("sb-2", "a.test")
        gateway.kill()
        shutil.rmtree(gone.parent)
        await gateway.start()
        assert [report.id for report in await gateway.client.list_doors()] == ["sb-2"]
        assert (await gateway.client.health()).dropped_doors == {"sb-1": "directory_missing"}
        assert (await ask(stays, connect_request("b.test:443"))).status == 403
        gateway.kill()
        await gateway.start()
        assert (await gateway.client.health()).dropped_doors == {}


async def test_a_state_file_that_cannot_be_read_costs_that_door_only(folder: Path) -> None:
    async with GatewayProcess(folder) as gateway:
        await gateway.open("sb-1", "a.test")
        await gateway.open("sb-2", "a.test")
        gateway.kill()
        (folder / "control.sock.state" / "sb-1.json").write_bytes(b'{"allow": ["a.te')
        await gateway.start()
        assert [report.id for report in await gateway.client.list_doors()] == ["sb-2"]
        assert (await gateway.client.health()).dropped_doors == {"sb-1": "state_unreadable"}
        await gateway.client.put_door(SandboxId("sb-1"), DoorSpec(allow=["b.test"]))
        assert (await gateway.client.health()).dropped_doors == {}


async def test_an_orderly_stop_forgets_no_door_and_a_second_process_cannot_start_beside_it(folder: Path) -> None:
    async with GatewayProcess(folder) as gateway:
        await gateway.open("sb-1", "a.test")
        assert "Another gateway" in gateway.start_and_fail()
        assert gateway.process is not None
        gateway.process.terminate()
        assert gateway.process.wait(START_S) == 0
        assert not gateway.control.exists()
        await gateway.start()
        assert [report.id for report in await gateway.client.list_doors()] == ["sb-1"]


async def test_every_decision_is_one_json_line_of_the_log(folder: Path) -> None:
    async with tcp_server(echo) as port, GatewayProcess(folder) as gateway:
        target = f"127.0.0.1:{port}"
        door = await gateway.open("sb-1", target)
        await ask(door, connect_request("evil.test:443"))
        async with Client(door) as client:
            await client.connect(target)
            await client.send(b"x")
            client.writer.write_eof()
            assert await client.rest() == b"x"
        await until(lambda: len(gateway.rows()) == 3, "the tunnel's end is logged")
        await gateway.client.delete_door(SandboxId("sb-1"))
        rows = [(row["outcome"], row.get("code"), row.get("target")) for row in gateway.rows()]
        assert rows == [
            ("door", "opened", None),
            ("denied", "host_not_allowed", "evil.test:443"),
            ("allowed", None, target),
            ("door", "closed", None),
        ]
        assert {str(row["labels"]) for row in gateway.rows()} == {"{'pool': 't/p'}"}
        assert oct(gateway.log.stat().st_mode & 0o777) == "0o600"


async def test_the_process_cuts_tunnels_by_a_reset_too(folder: Path) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
            ended.set_result("end")
        except ConnectionResetError:
            ended.set_result("reset")

    async with tcp_server(watch) as port, GatewayProcess(folder) as gateway:
        target = f"127.0.0.1:{port}"
        async with Client(await gateway.open("sb-1", target)) as client:
            await client.connect(target)
            await gateway.client.delete_door(SandboxId("sb-1"))
            async with asyncio.timeout(10):
                assert await ended == "reset"


async def test_a_log_that_cannot_be_opened_stops_the_start_with_a_reason(folder: Path) -> None:
    gateway = GatewayProcess(folder, "--log-file", str(folder / "missing" / "log"))
    assert "cannot start" in gateway.start_and_fail()


def test_the_log_keeps_one_older_file_and_stays_bounded(folder: Path) -> None:
    sink = JsonLinesSink(folder / "log", max_bytes=2000)
    for number in range(200):
        sink.write(Row(at=float(number), outcome="denied", door="sb-1"))
    sink.close()
    assert sorted(path.name for path in folder.iterdir()) == ["log", "log.1"]
    assert all((folder / name).stat().st_size <= 2000 for name in ("log", "log.1"))
    assert b'"at":199.0' in (folder / "log").read_bytes() and sink.lost == 0


def test_a_row_that_cannot_be_written_is_counted() -> None:
    sink = JsonLinesSink(Path("/dev/full"))
    sink.write(Row(at=0.0, outcome="denied", door="sb-1"))
    assert sink.lost == 1
