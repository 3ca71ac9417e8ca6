"""Tunnels: bytes both ways, half-close, back-pressure, limits, and being cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from agents.egress.limits import Limits
from agents.wire.egress import DoorSpec

from .parts import Client, Gateway, connect_request, echo, tcp_server, until


async def test_what_the_client_sends_right_behind_its_head_is_carried_too(gateway: Gateway) -> None:
    async with tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.send(connect_request("a.test:443") + b"early")
            async with asyncio.timeout(10):
                assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                assert await client.reader.readexactly(5) == b"early"


async def test_bytes_arrive_unchanged_in_both_directions_and_are_counted(gateway: Gateway) -> None:
    payload = os.urandom(3_000_000)
    async with tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.connect("a.test:443")

            async def send() -> None:
                await client.send(payload)
                client.writer.write_eof()

            _, back = await asyncio.gather(send(), client.rest())
        assert back == payload
        await until(lambda: gateway.registry.get("sb-1").connections_open == 0, "the connection ends")
    row, report = gateway.audit.of("allowed")[0], gateway.registry.get("sb-1")
    assert (row.bytes_up, row.bytes_down) == (report.bytes_up, report.bytes_down) == (3_000_000, 3_000_000)
    assert (row.target, row.address) == ("a.test:443", "93.184.216.34")


async def test_each_direction_ends_by_itself(gateway: Gateway) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(b"you sent %d" % len(data))
        await writer.drain()

    async with tcp_server(count) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.connect("a.test:443")
            await client.send(b"x" * 1000)
            client.writer.write_eof()
            assert await client.rest() == b"you sent 1000"


async def test_an_upstream_that_ends_first_still_reads_what_the_client_sends(gateway: Gateway) -> None:
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def close_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        got.set_result(await reader.read(-1))

    async with tcp_server(close_first) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.connect("a.test:443")
            assert await client.rest() == b"bye"
            await client.send(b"still here")
            client.writer.write_eof()
            async with asyncio.timeout(10):
                assert await got == b"still here"


async def test_a_reset_of_the_client_reaches_the_upstream_as_a_reset(gateway: Gateway) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One byte more than the client takes: a Unix socket closed on unread bytes is a reset for its peer.
        writer.write(b"ab")
        try:
            await reader.read(-1)
            ended.set_result("end")
        except ConnectionResetError:
            ended.set_result("reset")

    async with tcp_server(watch) as port:
        gateway.serve_name("a.test", 443, port)
        door = await gateway.door("a.test")
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            await loop.sock_connect(client, str(door))
            await loop.sock_sendall(client, connect_request("a.test:443"))
            head = b""
            while not head.endswith(b"\r\n\r\na"):
                head += await loop.sock_recv(client, 1)
            await until(lambda: gateway.registry.get("sb-1").bytes_down == 2, "both bytes are relayed")
        async with asyncio.timeout(10):
            assert await ended == "reset"


async def test_a_tunnel_cut_by_a_new_policy_is_a_reset_for_the_upstream(gateway: Gateway) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(-1)
            ended.set_result("end")
        except ConnectionResetError:
            ended.set_result("reset")

    async with tcp_server(watch) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.connect("a.test:443")
            await gateway.registry.put("sb-1", DoorSpec(allow=[]))
            async with asyncio.timeout(10):
                assert await ended == "reset"


async def test_a_sink_that_does_not_read_holds_the_sender_back(gateway: Gateway) -> None:
    release = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()

    async with tcp_server(deaf) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.connect("a.test:443")
            client.writer.transport.set_write_buffer_limits(high=0)
            sent = 0
            try:
                while sent < 64_000_000:
                    async with asyncio.timeout(1.0):
                        await client.send(b"x" * 100_000)
                    sent += 100_000
            except TimeoutError:
                pass
            report = gateway.registry.get("sb-1")
            # What the kernel's socket buffers take is not the gateway's; its own part is 256 KiB.
            assert sent - report.bytes_up <= 1_000_000
            assert sent < 32_000_000
            release.set()


async def test_a_tunnel_on_which_nothing_moves_is_cut_at_the_idle_limit() -> None:
    async with Gateway(limits=Limits(idle_s=0.2)) as gateway, tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.connect("a.test:443")
            await client.send(b"x")
            assert await client.rest() == b"x"
        await until(lambda: [row.code for row in gateway.audit.of("failed")] == ["idle"], "the cut is recorded")


async def test_a_client_that_asks_for_nothing_is_let_go_at_the_idle_limit() -> None:
    async with Gateway(limits=Limits(idle_s=0.2)) as gateway, Client(await gateway.door("a.test")) as client:
        assert await client.rest() == b""


async def test_deleting_a_door_cuts_its_connections_and_records_them(gateway: Gateway) -> None:
    async with tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        door = await gateway.door("a.test")
        async with Client(door) as client:
            await client.connect("a.test:443")
            await gateway.registry.delete("sb-1")
            with contextlib.suppress(ConnectionResetError):
                assert await client.rest() == b""
        assert not door.exists()
    assert [row.code for row in gateway.audit.of("failed")] == ["door_closed"]


async def test_a_narrower_policy_cuts_only_what_it_no_longer_allows(gateway: Gateway) -> None:
    async with tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        gateway.serve_name("b.test", 443, port, address="93.184.216.35")
        door = await gateway.door("a.test", "b.test")
        async with Client(door) as first, Client(door) as second:
            await asyncio.gather(first.connect("a.test:443"), second.connect("b.test:443"))
            await gateway.registry.put("sb-1", DoorSpec(allow=["b.test"]))
            with contextlib.suppress(ConnectionResetError):
                assert await first.rest() == b""
            await second.send(b"alive")
            assert await second.reader.readexactly(5) == b"alive"
            await until(lambda: len(gateway.audit.of("failed")) == 1, "the cut is recorded")
            assert gateway.audit.of("failed")[0].code == "policy_changed"
