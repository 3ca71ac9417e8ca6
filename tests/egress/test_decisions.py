"""What the wire shows of allowing and denying: status, reason, audit row, and silence towards the outside."""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address

import msgspec
import pytest

from agents.egress.limits import Limits

from .parts import Client, Gateway, HttpUpstream, ask, connect_request, echo, tcp_server, until

ALLOW = ("github.com:443", "api.github.com:443", "a.example.com:443")


async def deny(gateway: Gateway, raw: bytes, reason: str, target: str) -> None:
    """403, the reason in the body, one audit row, no look-up, no dial."""
    door = await gateway.door(*ALLOW)
    gateway.audit.rows.clear()
    reply = await ask(door, raw)
    body = msgspec.json.decode(reply.body)
    assert (reply.status, body["code"], body["target"]) == (403, reason, target)
    assert [(row.outcome, row.code, row.target) for row in gateway.audit.rows] == [("denied", reason, target)]
    assert gateway.resolver.queries == [] and gateway.connector.dialled == []
    report = gateway.registry.get("sb-1")
    assert report.denied == {reason: 1} and report.allowed == 0 and report.bytes_up == 0
    assert [(denied.target, denied.reason) for denied in report.last_denied] == [(target, reason)]


@pytest.mark.parametrize(
    "host", ["evil-example.com", "example.com.evil.com", "notgithub.com", "example.com", "b.a.example.com"]
)
async def test_a_host_that_is_not_listed_exactly_is_denied(gateway: Gateway, host: str) -> None:
    await deny(gateway, connect_request(f"{host}:443"), "host_not_allowed", f"{host}:443")


@pytest.mark.parametrize("port", [22, 8443, 80])
async def test_a_port_that_is_not_listed_is_denied(gateway: Gateway, port: int) -> None:
    await deny(gateway, connect_request(f"github.com:{port}"), "port_not_allowed", f"github.com:{port}")


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1"])
async def test_an_odd_spelling_of_an_address_is_denied(gateway: Gateway, host: str) -> None:
    await deny(gateway, connect_request(f"{host}:80"), "odd_address", f"{host}:80")


async def test_an_ipv4_address_inside_an_ipv6_address_is_denied(gateway: Gateway) -> None:
    # Python 3.13 spells it with dots, earlier ones do not.
    target = f"[{IPv6Address('::ffff:127.0.0.1')}]:80"
    await deny(gateway, connect_request("[::ffff:127.0.0.1]:80"), "odd_address", target)


@pytest.mark.parametrize("target", ["169.254.169.254:80", "[fd00:ec2::254]:80", "127.0.0.1:443", "8.8.8.8:443"])
async def test_an_address_that_is_not_listed_is_denied(gateway: Gateway, target: str) -> None:
    await deny(gateway, connect_request(target), "host_not_allowed", target)


async def test_an_absolute_form_request_is_denied_like_a_tunnel(gateway: Gateway) -> None:
    raw = b"GET http://evil.com/secret?token=1 HTTP/1.1\r\nHost: evil.com\r\n\r\n"
    await deny(gateway, raw, "host_not_allowed", "evil.com:80")


async def test_an_empty_list_allows_nothing(gateway: Gateway) -> None:
    reply = await ask(await gateway.door(), connect_request("github.com:443"))
    assert (reply.status, reply.code) == (403, "host_not_allowed")


async def test_github_in_capitals_with_a_trailing_dot_is_allowed_as_github(gateway: Gateway) -> None:
    async with tcp_server(echo) as port:
        gateway.serve_name("github.com", 443, port)
        async with Client(await gateway.door(*ALLOW)) as client:
            await client.connect("GITHUB.COM.:443")
            await client.send(b"hello")
            assert await client.reader.readexactly(5) == b"hello"
    assert gateway.resolver.queries == ["github.com"]


@pytest.mark.parametrize(
    "raw",
    [
        connect_request("github.com..:443"),
        connect_request(".example.com:443"),
        connect_request("github.com:0"),
        connect_request("github.com:65536"),
        connect_request("github.com:443x"),
        b"GET http://github.com@evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        b"GET http://evil.com#@github.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        b"CONNECT github.com:443 HTTP/1.1\nHost: github.com\n\n",
        b"POST http://github.com/ HTTP/1.1\r\nHost: github.com\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_answered_400_and_goes_nowhere(gateway: Gateway, raw: bytes) -> None:
    door = await gateway.door("github.com", "evil.com")
    gateway.audit.rows.clear()
    async with Client(door) as client:
        await client.send(raw)
        reply = await client.reply()
        assert reply.status == 400 and reply.headers["connection"] == "close"
        assert await client.rest() == b""
    assert [row.outcome for row in gateway.audit.rows] == ["bad_request"]
    assert gateway.resolver.queries == [] and gateway.connector.dialled == []
    assert gateway.registry.get("sb-1").bad_requests == {reply.code: 1}


async def test_secrets_of_a_malformed_target_are_not_recorded(gateway: Gateway) -> None:
    door = await gateway.door("github.com")
    for target in ("http://user:s3cret@github.com/", "http://u:s3/cret@github.com/s3cret", "https://github.com/s3cret"):
        assert (await ask(door, f"GET {target} HTTP/1.1\r\nHost: github.com\r\n\r\n".encode())).status == 400
    recorded = msgspec.json.encode([*gateway.audit.rows, *gateway.registry.list()])
    assert b"s3" not in recorded and b"github.com" in recorded


async def test_a_head_that_never_completes_is_given_up() -> None:
    async with Gateway(limits=Limits(head_s=0.1, linger_s=1.0)) as gateway:
        reply = await ask(await gateway.door("github.com"), b"CONNECT github.com:443 HTTP/1.1\r\nHost:")
        assert (reply.status, reply.code) == (408, "head_timeout")


async def test_a_head_that_is_too_large_is_refused(gateway: Gateway) -> None:
    raw = b"CONNECT github.com:443 HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"
    reply = await ask(await gateway.door("github.com"), raw)
    assert (reply.status, reply.code) == (431, "head_too_large")


async def test_a_client_that_still_sends_its_body_gets_to_read_the_denial(gateway: Gateway) -> None:
    raw = b"POST http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
    assert (await ask(await gateway.door("github.com"), raw)).status == 403


async def test_each_door_has_its_own_policy(gateway: Gateway) -> None:
    upstream = HttpUpstream()
    async with tcp_server(upstream) as port:
        gateway.serve_name("a.test", 80, port)
        first, second = await gateway.door("a.test", name="sb-1"), await gateway.door("b.test", name="sb-2")
        raw = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"
        assert (await ask(first, raw)).status == 200
        assert (await ask(second, raw)).status == 403


async def test_connections_above_the_cap_of_a_door_are_turned_away_until_one_ends() -> None:
    async with Gateway(limits=Limits(connections=2)) as gateway, tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        door, other = await gateway.door("a.test"), await gateway.door("a.test", name="sb-2")
        async with Client(door) as first, Client(door) as second:
            await asyncio.gather(first.connect("a.test:443"), second.connect("a.test:443"))
            async with Client(door) as third:
                reply = await third.reply()
                assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "too_many_connections", "1")
            async with Client(other) as fourth:
                await fourth.connect("a.test:443")
        await until(lambda: gateway.registry.get("sb-1").connections_open == 0, "the connections end")
        async with Client(door) as fifth:
            await fifth.connect("a.test:443")
        assert gateway.registry.get("sb-1").failed == {"too_many_connections": 1}
