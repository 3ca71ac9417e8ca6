"""Absolute-form requests: what the upstream gets, what the client gets, and that nothing slips behind."""

from __future__ import annotations

import asyncio

import pytest

from agents.egress.limits import Limits

from .parts import Client, Gateway, HttpUpstream, ask, tcp_server, until

GET = b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n"


async def test_the_upstream_gets_the_canonical_request_without_hop_by_hop_headers(gateway: Gateway) -> None:
    upstream = HttpUpstream()
    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 80, port)
        extra = b"Proxy-Authorization: Basic abc\r\nProxy-Connection: keep-alive\r\nConnection: X-Drop, host\r\n"
        extra += b"X-Drop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nKeep-Alive: 5\r\nX-Keep: 1\r\nX-Keep: 2\r\n\r\n"
        reply = await ask(await gateway.door("a.test"), GET.replace(b"a.test\r\n", b"A.test:80\r\n") + extra)
    assert (reply.status, reply.body) == (200, b"ok")
    assert upstream.raw.startswith(b"GET /x HTTP/1.1\r\nHost: a.test\r\n")
    names = [name for name, _ in upstream.requests[0].headers]
    assert names == [b"host", b"x-keep", b"x-keep", b"connection"]
    assert upstream.headers()["connection"] == "close"


async def test_a_port_other_than_80_stays_in_the_host_header(gateway: Gateway) -> None:
    upstream = HttpUpstream()
    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 8080, port)
        raw = b"GET http://a.test:8080 HTTP/1.1\r\nHost: a.test:8080\r\n\r\n"
        assert (await ask(await gateway.door("a.test:8080"), raw)).status == 200
    assert upstream.headers()["host"] == "a.test:8080" and upstream.requests[0].target == b"/"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"Content-Length: 11", b"hello world"),
        (b"Content-Length: 11\r\nContent-Length: 11", b"hello world"),
        (b"Transfer-Encoding: chunked", b"6;ext=1\r\nhello \r\n5\r\nworld\r\n0\r\nX-Trailer: 1\r\n\r\n"),
    ],
)
async def test_a_body_arrives_by_either_framing(gateway: Gateway, header: bytes, body: bytes) -> None:
    upstream = HttpUpstream()
    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 80, port)
        raw = b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\n" + header + b"\r\n\r\n" + body
        assert (await ask(await gateway.door("a.test"), raw)).status == 200
    assert upstream.bodies == [b"hello world"]
    assert b"ext=1" not in upstream.raw and b"X-Trailer" not in upstream.raw


async def test_a_second_request_on_the_same_connection_is_decided_anew(gateway: Gateway) -> None:
    upstream = HttpUpstream()
    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            evil = b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"
            # All at once: what is pipelined behind a body must not travel with it.
            await client.send(GET + b"Content-Length: 2\r\n\r\nhi" + GET + b"\r\n" + evil + GET + b"\r\n")
            assert [(await client.reply()).status for _ in range(3)] == [200, 200, 403]
            assert await client.rest() == b""
    assert len(upstream.requests) == 2 and upstream.bodies == [b"hi", b""]
    assert b"evil" not in upstream.raw
    assert [row.target for row in gateway.audit.of("denied")] == ["evil.test:80"]
    assert gateway.audit.of("denied")[0].address == ""


async def test_a_request_smuggled_behind_a_body_never_reaches_the_upstream(gateway: Gateway) -> None:
    upstream = HttpUpstream()
    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            inner = b"GET /admin HTTP/1.1\r\nHost: b.test\r\n\r\n"
            await client.send(GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner)
            assert (await client.reply()).status == 200
            second = await client.reply()
            assert (second.status, second.code) == (400, "not_absolute")
    assert b"admin" not in upstream.raw


@pytest.mark.parametrize("body", [b"zz\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloXX0\r\n\r\n"])
async def test_a_malformed_chunk_is_answered_400_and_the_upstream_sees_no_end(gateway: Gateway, body: bytes) -> None:
    ends: list[bool] = []

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        try:
            while chunk := await reader.read(65536):
                data += chunk
        except ConnectionError:
            pass
        ends.append(data.endswith(b"0\r\n\r\n"))

    async with tcp_server(watch) as port:
        gateway.serve_name("a.test", 80, port)
        reply = await ask(await gateway.door("a.test"), GET + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        assert (reply.status, reply.code) == (400, "bad_body")
        assert ends == [False]


async def test_a_request_cut_off_in_its_body_never_looks_complete(gateway: Gateway) -> None:
    done = asyncio.Event()
    got = bytearray()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(65536):
                got.extend(chunk)
        except ConnectionError:
            pass
        done.set()

    async with tcp_server(watch) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.send(GET + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        async with asyncio.timeout(10):
            await done.wait()
    assert not got.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", b"ok"),
    ],
)
async def test_every_framing_of_an_answer_arrives_whole_and_keeps_the_connection(
    gateway: Gateway, answer: bytes, body: bytes
) -> None:
    async with tcp_server(HttpUpstream(answer=answer)) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            for _ in range(2):
                await client.send(GET + b"\r\n")
                reply = await client.reply()
                assert reply.body == body and "proxy" not in str(reply.headers) and "via" not in reply.headers


async def test_an_answer_to_head_has_no_body_and_keeps_its_length(gateway: Gateway) -> None:
    async with tcp_server(HttpUpstream(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.send(GET.replace(b"GET", b"HEAD") + b"\r\n")
            reply = await client.reply("HEAD")
    assert (reply.headers["content-length"], reply.body) == ("1000", b"")


async def test_a_redirect_is_relayed_and_not_followed(gateway: Gateway) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://x.test/\r\nContent-Length: 0\r\n\r\n"
    async with tcp_server(HttpUpstream(answer=answer)) as port:
        gateway.serve_name("a.test", 80, port)
        reply = await ask(await gateway.door("a.test", "x.test"), GET + b"\r\n")
    assert (reply.status, reply.headers["location"]) == (302, "http://x.test/")
    assert len(gateway.connector.dialled) == 1


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(gateway: Gateway) -> None:
    bodies: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        bodies.append(await reader.readexactly(5))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.send(GET + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            async with asyncio.timeout(10):
                assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            await client.send(b"hello")
            assert (await client.reply()).status == 200
    assert bodies == [b"hello"]


async def test_an_answer_given_before_the_body_was_read_is_passed_on(gateway: Gateway) -> None:
    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await reader.read(-1)

    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.send(GET + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000)
            reply = await client.reply()
            assert (reply.status, reply.body) == (413, b"big")
            assert await client.rest() == b""


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_an_upstream_that_does_not_answer_in_http_is_a_502(gateway: Gateway, answer: bytes) -> None:
    async with tcp_server(HttpUpstream(answer=answer)) as port:
        gateway.serve_name("a.test", 80, port)
        reply = await ask(await gateway.door("a.test"), GET + b"\r\n")
    assert (reply.status, reply.code) == (502, "bad_answer")
    assert gateway.registry.get("sb-1").failed == {"bad_answer": 1}


async def test_an_answer_that_ends_early_is_cut_so_that_the_client_can_tell(gateway: Gateway) -> None:
    async with tcp_server(HttpUpstream(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.send(GET + b"\r\n")
            received = await client.rest()
            # Whatever of it arrived, it is no whole answer, and no second one was put behind it.
            assert b"502" not in received and len(received.partition(b"\r\n\r\n")[2]) < 10
    assert [row.code for row in gateway.audit.of("failed")] == ["bad_answer"]


async def test_an_upstream_that_never_answers_is_given_up_at_the_idle_limit() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with Gateway(limits=Limits(idle_s=0.2)) as gateway, tcp_server(silent) as port:
        gateway.serve_name("a.test", 80, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.send(GET + b"\r\n")
            assert await client.rest() == b""
        await until(lambda: [row.code for row in gateway.audit.of("failed")] == ["idle"], "the cut is recorded")
