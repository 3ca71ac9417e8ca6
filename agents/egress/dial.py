"""From a granted target to a connected stream: look-up, check of every answer, dialling the checked address.

Three ports: ``Resolver`` (names to addresses), ``Connector`` (one address to a stream), ``Dialer`` (both,
for a grant). The address that was checked is the one that is dialled; a name is never looked up twice.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Protocol

from agents.egress.addresses import Address, is_public
from agents.egress.limits import READ_LIMIT_BYTES, WRITE_LIMIT_BYTES, Limits
from agents.egress.policy import Grant

Network = IPv4Network | IPv6Network
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_NEVER_REACHABLE = [
    ip_network(text)
    for text in ("127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "0.0.0.0/8", "::/127", "fe80::/10", "ff00::/8")
]


_MAX_ATTEMPTS = 6


class DialError(Exception):
    """A granted target was not reached. ``code`` is one of ``name_not_resolved``, ``resolve_timeout``,
    ``address_refused``, ``connect_failed``, ``connect_timeout``, ``upstream_proxy_failed``."""

    def __init__(self, code: str, detail: str, *, status: int = 502) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A connected upstream. ``address`` is what was dialled. ``proxy_headers`` is None when the peer is the
    target itself; else the peer is a proxy that wants absolute-form requests with these headers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str
    proxy_headers: tuple[tuple[bytes, bytes], ...] | None = None


class Resolver(Protocol):
    async def resolve(self, host: str) -> Sequence[Address]:
        """All addresses of ``host`` in the order to try. Raises OSError if there is none."""
        ...


class Connector(Protocol):
    async def connect(self, address: str, port: int) -> Streams:
        """A TCP connection. Raises OSError."""
        ...


class Dialer(Protocol):
    async def dial(self, grant: Grant, *, tunnel: bool) -> Upstream:
        """A connection for ``grant``. ``tunnel`` False: one plain HTTP request will be sent on it.
        Raises DialError."""
        ...


class SystemResolver:
    """The host's own resolver (files, DNS), in a thread."""

    async def resolve(self, host: str) -> Sequence[Address]:
        answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(ip_address(sockaddr[0]) for *_, sockaddr in answers))


class TcpConnector:
    async def connect(self, address: str, port: int) -> Streams:
        reader, writer = await asyncio.open_connection(address, port, limit=READ_LIMIT_BYTES)
        writer.transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)
        return reader, writer


def parse_reachable_network(text: str) -> Network:
    """A network that the operator declares as reachable by allowed names though it is not public (a mirror
    in the company's network). Raises ValueError, also for loopback, link-local and multicast."""
    network = ip_network(text)
    if any(network.version == other.version and network.overlaps(other) for other in _NEVER_REACHABLE):
        raise ValueError(f"{text} holds loopback, link-local, multicast or unspecified addresses")
    return network


class DirectDialer:
    """Dials targets itself. ``reachable`` are the networks of ``parse_reachable_network``."""

    def __init__(
        self,
        *,
        resolver: Resolver,
        connector: Connector,
        limits: Limits,
        reachable: Sequence[Network] = (),
    ) -> None:
        self._resolver = resolver
        self._connector = connector
        self._limits = limits
        self._reachable = reachable

    async def dial(self, grant: Grant, *, tunnel: bool) -> Upstream:
        addresses = await self._addresses(grant)
        failure = DialError("connect_failed", f"No address of {grant.target} accepted the connection.")
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    reader, writer = await self._connector.connect(str(address), grant.target.port)
            except TimeoutError:
                detail = f"{grant.target} did not answer within {self._limits.connect_s:g} s."
                failure = DialError("connect_timeout", detail, status=504)
            except OSError as error:
                failure = DialError("connect_failed", f"{grant.target} refused: {error.strerror or error}.")
            else:
                return Upstream(reader=reader, writer=writer, address=str(address))
        raise failure

    async def _addresses(self, grant: Grant) -> Sequence[Address]:
        if grant.scope == "listed_address":
            return [ip_address(grant.target.host.text)]
        addresses = await self._resolve(grant.target.host.text)
        refused = [address for address in addresses if not self._may_dial(address, grant)]
        if refused:
            # One bad answer spoils all: a mix of public and private answers is how rebinding looks.
            detail = f"{grant.target.host.text} resolves to {refused[0]}, which is not a public address."
            raise DialError("address_refused", detail)
        return addresses[:_MAX_ATTEMPTS]

    async def _resolve(self, name: str) -> Sequence[Address]:
        try:
            async with asyncio.timeout(self._limits.resolve_s):
                addresses = await self._resolver.resolve(name)
        except TimeoutError as error:
            detail = f"Looking up {name} took longer than {self._limits.resolve_s:g} s."
            raise DialError("resolve_timeout", detail, status=504) from error
        except (OSError, UnicodeError) as error:
            raise DialError("name_not_resolved", f"{name} cannot be looked up: {error}.") from error
        if not addresses:
            raise DialError("name_not_resolved", f"{name} has no address.")
        return addresses

    def _may_dial(self, address: Address, grant: Grant) -> bool:
        if is_public(address) or (grant.scope == "loopback" and address.is_loopback):
            return True
        return any(address in network for network in self._reachable)
