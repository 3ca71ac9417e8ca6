"""The way out: an ordinary proxy address in front of the egress gateway's socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from agents.wire import Ready
from tests.sandboxd.daemon import Daemon, decoded, running


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def with_way_out() -> AsyncIterator[tuple[Daemon, int, Path]]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="wp-sbx-") as folder:
        path = Path(folder) / "egress.sock"
        async with running(cgroups=None, egress_socket=str(path), proxy_port=port) as daemon:
            assert decoded(await daemon.call("GET", "/v1/ready?wait_s=10"), Ready).parts["forwarder"] == "ready"
            yield daemon, port, path


async def test_bytes_go_both_ways_and_half_closing_is_passed_on() -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello ")
        writer.write(str(len(await reader.read(-1))).encode())
        await writer.drain()
        writer.close()

    async with with_way_out() as (_, port, path), await asyncio.start_unix_server(count, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 5_000_000)
        writer.write_eof()
        assert await reader.read(-1) == b"hello 5000000"
        writer.close()


async def test_a_gateway_that_is_away_is_answered_for_and_found_when_it_is_back() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        writer.close()

    async with with_way_out() as (_, port, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 502 ")
        writer.close()
        async with await asyncio.start_unix_server(answer, path):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read(-1) == b"here"
            writer.close()


async def test_when_one_side_goes_the_other_is_closed() -> None:
    gone = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(-1)
        gone.set()
        writer.close()

    async with with_way_out() as (_, port, path), await asyncio.start_unix_server(wait_for_end, path):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await writer.drain()
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), 10)


async def test_commands_are_told_of_the_way_out() -> None:
    async with with_way_out() as (daemon, port, _):
        result = await daemon.run("echo $HTTPS_PROXY $http_proxy $NO_PROXY")
        assert result.stdout == f"http://127.0.0.1:{port} http://127.0.0.1:{port} localhost,127.0.0.1,::1\n"
