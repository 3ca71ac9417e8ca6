"""Dialling through the proxy that the gateway's own environment names (a company's way out).

Such a proxy looks names up itself, so the check of answers for private addresses is then its business; the
list of allowed hosts is enforced here all the same. Addresses and ``localhost`` that a policy names, and hosts
of ``NO_PROXY``, are dialled directly.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from agents.egress.dial import Connector, Dialer, DialError, Upstream
from agents.egress.limits import Limits
from agents.egress.policy import Grant

_MAX_ANSWER_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAddress:
    """``authorization`` is the value for Proxy-Authorization, None without credentials; never shown."""

    host: str
    port: int
    authorization: bytes | None

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"proxy-authorization", self.authorization),) if self.authorization else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """``tunnel`` is used for CONNECT (HTTPS_PROXY), ``plain`` for http:// requests (HTTP_PROXY)."""

    tunnel: ProxyAddress | None
    plain: ProxyAddress | None
    direct_hosts: tuple[str, ...]

    @property
    def any(self) -> bool:
        return self.tunnel is not None or self.plain is not None

    def is_direct(self, host: str) -> bool:
        """Whether NO_PROXY names ``host`` or a domain above it; ``*`` names all."""
        for entry in self.direct_hosts:
            domain = entry.removeprefix("*").removeprefix(".")
            if entry == "*" or host == domain or (domain and host.endswith("." + domain)):
                return True
        return False


def proxies_from_environment(env: Mapping[str, str]) -> ProxySettings:
    """Settings of HTTPS_PROXY, HTTP_PROXY and NO_PROXY, either case, lower case first. Raises ValueError for
    a proxy that cannot be used, since going round it silently would be worse."""

    def value(name: str) -> str:
        return env.get(name.lower()) or env.get(name) or ""

    hosts = (entry.strip().lower() for entry in value("NO_PROXY").split(","))
    return ProxySettings(
        tunnel=_parse_proxy("HTTPS_PROXY", value("HTTPS_PROXY")),
        plain=_parse_proxy("HTTP_PROXY", value("HTTP_PROXY")),
        direct_hosts=tuple(host for host in hosts if host),
    )


def _parse_proxy(name: str, text: str) -> ProxyAddress | None:
    if not text:
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{name} must be http://[user:password@]HOST[:PORT]")
    authorization = None
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = b"Basic " + base64.b64encode(credentials.encode())
    return ProxyAddress(host=parts.hostname, port=parts.port or 80, authorization=authorization)


class ProxyDialer:
    """Dials through the configured proxies, and by ``direct`` where none applies."""

    def __init__(self, *, settings: ProxySettings, direct: Dialer, connector: Connector, limits: Limits) -> None:
        self._settings = settings
        self._direct = direct
        self._connector = connector
        self._limits = limits

    async def dial(self, grant: Grant, *, tunnel: bool) -> Upstream:
        proxy = self._settings.tunnel if tunnel else self._settings.plain
        if proxy is None or grant.scope != "public" or self._settings.is_direct(grant.target.host.text):
            return await self._direct.dial(grant, tunnel=tunnel)
        try:
            async with asyncio.timeout(self._limits.connect_s):
                return await self._dial_proxy(proxy, grant, tunnel=tunnel)
        except TimeoutError as error:
            detail = f"The upstream proxy did not answer within {self._limits.connect_s:g} s."
            raise DialError("connect_timeout", detail, status=504) from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise DialError("upstream_proxy_failed", "The upstream proxy cannot be reached.") from error

    async def _dial_proxy(self, proxy: ProxyAddress, grant: Grant, *, tunnel: bool) -> Upstream:
        reader, writer = await self._connector.connect(proxy.host, proxy.port)
        address = f"{proxy.host}:{proxy.port}"
        if not tunnel:
            return Upstream(reader=reader, writer=writer, address=address, proxy_headers=proxy.headers())
        try:
            await _open_tunnel(reader, writer, str(grant.target), proxy)
        except BaseException:
            writer.transport.abort()
            raise
        return Upstream(reader=reader, writer=writer, address=address)


async def _open_tunnel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, proxy: ProxyAddress
) -> None:
    lines = [f"CONNECT {target} HTTP/1.1".encode(), f"Host: {target}".encode()]
    lines += [name + b": " + value for name, value in proxy.headers()]
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
    await writer.drain()
    answer = await reader.readuntil(b"\r\n\r\n")
    status = answer.split(b"\r\n", 1)[0].split(b" ")[1:2]
    if len(answer) > _MAX_ANSWER_BYTES or not status or not status[0].startswith(b"2"):
        code = b"".join(status)[:3].decode("ascii", "replace")
        raise DialError("upstream_proxy_failed", f"The upstream proxy answered {code or 'nonsense'}.")
