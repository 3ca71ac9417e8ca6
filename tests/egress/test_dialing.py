"""Which addresses are dialled for an allowed name, directly and through an upstream proxy."""

from __future__ import annotations

import asyncio
import base64
from ipaddress import ip_network

import pytest

from agents.egress.dial import DialError, DirectDialer, parse_reachable_network
from agents.egress.limits import Limits
from agents.egress.names import parse_authority
from agents.egress.policy import Grant, decide, parse_policy
from agents.egress.upstream_proxy import ProxyDialer, proxies_from_environment

from .parts import (
    OTHER_PUBLIC,
    PUBLIC,
    Client,
    FixtureConnector,
    FixtureResolver,
    Gateway,
    HttpUpstream,
    ask,
    connect_request,
    echo,
    tcp_server,
)


def grant(entry: str, target: str) -> Grant:
    decision = decide(parse_policy([entry]), parse_authority(target, default_port=None))
    assert isinstance(decision, Grant)
    return decision


async def code_of(dialer: DirectDialer | ProxyDialer, wanted: Grant) -> str:
    with pytest.raises(DialError) as caught:
        await dialer.dial(wanted, tunnel=True)
    return caught.value.code


@pytest.mark.parametrize(
    "answers",
    [
        ["10.0.0.5"],
        [PUBLIC, "127.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["fd00:ec2::254"],
        ["::ffff:93.184.216.34"],
        ["192.168.0.1", PUBLIC],
        ["0.0.0.0"],
        ["100.64.0.1"],
        ["224.0.0.1"],
        ["203.0.113.9"],
    ],
)
async def test_an_allowed_name_with_any_answer_that_is_not_public_is_refused(
    gateway: Gateway, answers: list[str]
) -> None:
    gateway.resolver.answers["a.test"] = answers
    door = await gateway.door("a.test")
    for raw in (connect_request("a.test:443"), b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"):
        reply = await ask(door, raw)
        assert (reply.status, reply.code) == (502, "address_refused")
    assert gateway.connector.dialled == []
    assert gateway.registry.get("sb-1").failed == {"address_refused": 2}


async def test_localhost_without_its_port_in_the_list_is_refused(gateway: Gateway) -> None:
    gateway.resolver.answers["localhost"] = ["127.0.0.1"]
    assert (await ask(await gateway.door("localhost"), connect_request("localhost:80"))).code == "address_refused"


async def test_localhost_listed_with_its_port_is_dialled_on_loopback_only(gateway: Gateway) -> None:
    gateway.resolver.answers["localhost"] = ["127.0.0.1"]
    async with tcp_server(echo) as port:
        gateway.connector.routes["127.0.0.1", 81] = port
        async with Client(await gateway.door("localhost:81")) as client:
            await client.connect("localhost:81")
        gateway.resolver.answers["localhost"] = ["10.0.0.5"]
        assert (await ask(await gateway.door("localhost:81"), connect_request("localhost:81"))).status == 502


async def test_a_listed_address_is_dialled_without_a_look_up(gateway: Gateway) -> None:
    async with tcp_server(echo) as port:
        gateway.connector.routes["10.1.2.3", 8080] = port
        async with Client(await gateway.door("10.1.2.3:8080")) as client:
            await client.connect("10.1.2.3:8080")
    assert gateway.resolver.queries == []


async def test_addresses_are_tried_in_order_until_one_answers() -> None:
    connector = FixtureConnector(hang={PUBLIC})
    async with tcp_server(echo) as port:
        connector.routes[OTHER_PUBLIC, 443] = port
        resolver = FixtureResolver({"a.test": ["2606:4700::1111", PUBLIC, OTHER_PUBLIC]})
        dialer = DirectDialer(resolver=resolver, connector=connector, limits=Limits(connect_s=0.1))
        upstream = await dialer.dial(grant("a.test", "a.test:443"), tunnel=True)
        upstream.writer.close()
    assert upstream.address == OTHER_PUBLIC
    assert [address for address, _ in connector.dialled] == ["2606:4700::1111", PUBLIC, OTHER_PUBLIC]


async def test_a_name_is_looked_up_once_and_the_checked_address_is_dialled(gateway: Gateway) -> None:
    async with tcp_server(echo) as port:
        gateway.serve_name("a.test", 443, port)
        async with Client(await gateway.door("a.test")) as client:
            await client.connect("a.test:443")
    assert gateway.resolver.queries == ["a.test"] and gateway.connector.dialled == [(PUBLIC, 443)]


async def test_each_way_of_not_reaching_a_target_has_its_code() -> None:
    limits = Limits(resolve_s=0.1, connect_s=0.1)
    wanted = grant("a.test", "a.test:443")

    def dialer(resolver: FixtureResolver, connector: FixtureConnector) -> DirectDialer:
        return DirectDialer(resolver=resolver, connector=connector, limits=limits)

    known = FixtureResolver({"a.test": [PUBLIC]})
    assert await code_of(dialer(FixtureResolver(), FixtureConnector()), wanted) == "name_not_resolved"
    assert await code_of(dialer(FixtureResolver({"a.test": []}), FixtureConnector()), wanted) == "name_not_resolved"
    assert await code_of(dialer(FixtureResolver(hang=True), FixtureConnector()), wanted) == "resolve_timeout"
    assert await code_of(dialer(known, FixtureConnector()), wanted) == "connect_failed"
    assert await code_of(dialer(known, FixtureConnector(hang={PUBLIC})), wanted) == "connect_timeout"


async def test_a_network_that_the_operator_declares_reachable_counts_as_public() -> None:
    async with tcp_server(echo) as port:
        connector = FixtureConnector({("10.9.0.1", 443): port})
        resolver = FixtureResolver({"mirror.test": ["10.9.0.1"], "other.test": ["10.8.0.1"]})
        reachable = [parse_reachable_network("10.9.0.0/16")]
        dialer = DirectDialer(resolver=resolver, connector=connector, limits=Limits(), reachable=reachable)
        upstream = await dialer.dial(grant("mirror.test", "mirror.test:443"), tunnel=True)
        upstream.writer.close()
        assert await code_of(dialer, grant("other.test", "other.test:443")) == "address_refused"
    assert reachable == [ip_network("10.9.0.0/16")]


@pytest.mark.parametrize("text", ["127.0.0.0/8", "0.0.0.0/0", "::/0", "169.254.169.254/32", "10.0.0.1/8", "x", "::1"])
def test_loopback_and_link_local_can_never_be_declared_reachable(text: str) -> None:
    with pytest.raises(ValueError):
        parse_reachable_network(text)


class ConnectProxy:
    """An upstream proxy of a company: answers ``status`` to CONNECT, then echoes."""

    def __init__(self, status: bytes = b"200 OK") -> None:
        self.status = status
        self.heads: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + self.status + b"\r\n\r\n")
        await echo(reader, writer)


def through(gateway: Gateway, environment: dict[str, str]) -> ProxyDialer:
    settings = proxies_from_environment(environment)
    return ProxyDialer(
        settings=settings, direct=gateway.dialer, connector=gateway.connector, limits=Limits(connect_s=5.0)
    )


async def test_a_tunnel_goes_through_the_upstream_proxy_with_its_credentials(gateway: Gateway) -> None:
    proxy = ConnectProxy()
    async with tcp_server(proxy) as port:
        gateway.connector.routes["proxy.test", 3128] = port
        dialer = through(gateway, {"HTTPS_PROXY": "http://me:p%40ss@proxy.test:3128"})
        upstream = await dialer.dial(grant("a.test", "a.test:443"), tunnel=True)
        upstream.writer.write(b"hello")
        assert await upstream.reader.readexactly(5) == b"hello"
        upstream.writer.close()
    credentials = base64.b64encode(b"me:p@ss")
    assert proxy.heads == [
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nproxy-authorization: Basic " + credentials + b"\r\n\r\n"
    ]
    assert gateway.resolver.queries == []


async def test_a_plain_request_reaches_the_upstream_proxy_in_absolute_form() -> None:
    upstream = HttpUpstream()
    gateway = Gateway()
    gateway.dialer = through(gateway, {"http_proxy": "proxy.test"})  # type: ignore[assignment]
    async with gateway, tcp_server(upstream) as port:
        gateway.connector.routes["proxy.test", 80] = port
        raw = b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: guest\r\n\r\n"
        assert (await ask(await gateway.door("a.test"), raw)).status == 200
    assert upstream.requests[0].target == b"http://a.test:80/x"
    assert "proxy-authorization" not in upstream.headers()


async def test_hosts_of_no_proxy_and_listed_addresses_are_dialled_directly(gateway: Gateway) -> None:
    async with tcp_server(echo) as port:
        gateway.serve_name("x.corp.test", 443, port)
        gateway.connector.routes["127.0.0.1", 443] = port
        dialer = through(gateway, {"HTTPS_PROXY": "http://proxy.test:1", "NO_PROXY": "other, .corp.test"})
        for target in ("x.corp.test:443", "127.0.0.1:443"):
            (await dialer.dial(grant(target, target), tunnel=True)).writer.close()
        assert await code_of(dialer, grant("a.test", "a.test:443")) == "upstream_proxy_failed"


async def test_a_refusal_of_the_upstream_proxy_is_a_typed_failure(gateway: Gateway) -> None:
    async with tcp_server(ConnectProxy(b"407 Proxy Authentication Required")) as port:
        gateway.connector.routes["proxy.test", 80] = port
        dialer = through(gateway, {"HTTPS_PROXY": "http://proxy.test"})
        assert await code_of(dialer, grant("a.test", "a.test:443")) == "upstream_proxy_failed"


@pytest.mark.parametrize("proxy", ["socks5://proxy:1080", "https://proxy:3128", "http://", "http://proxy:port"])
def test_a_proxy_that_cannot_be_used_stops_the_start(proxy: str) -> None:
    with pytest.raises(ValueError):
        proxies_from_environment({"HTTPS_PROXY": proxy})
