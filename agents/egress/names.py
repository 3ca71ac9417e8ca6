"""How a host may be spelled: text from a request or a policy → one canonical form, or an error. Pure.

A name is lower-case ASCII A-labels without the trailing dot; an address is its canonical form, which must
also be its spelling. Everything a resolver could take for an IPv4 address in disguise (``127.1``,
``0x7f.1``, ``2130706433``) is of kind ``odd``, which no policy ever allows.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

HostKind = Literal["name", "address", "odd"]

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_MAX_NAME = 253


class BadName(Exception):
    """The text is not a host or not an authority. ``code`` is machine-readable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    text: str
    kind: HostKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a request wants to go. ``str()`` gives ``host:port``, IPv6 in brackets."""

    host: Host
    port: int

    def __str__(self) -> str:
        return f"{self.authority_host}:{self.port}"

    @property
    def authority_host(self) -> str:
        return f"[{self.host.text}]" if ":" in self.host.text else self.host.text


def parse_authority(text: str, *, default_port: int | None) -> Target:
    """``host[:port]`` of a request. Without a port ``default_port`` is taken; None makes it an error.

    Raises BadName: ``bad_host``, ``bad_port``, ``userinfo``.
    """
    if "@" in text:
        raise BadName("userinfo", "A target may not carry a user name or password.")
    host, port = split_port(text)
    if port is None:
        if default_port is None:
            raise BadName("bad_port", "The target has no port; a tunnel needs host:port.")
        return Target(host=parse_host(host), port=default_port)
    return Target(host=parse_host(host), port=parse_port(port))


def split_port(text: str) -> tuple[str, str | None]:
    """Host and port texts; an IPv6 address keeps its brackets. Raises BadName ``bad_host``."""
    if text.startswith("["):
        inner, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadName("bad_host", "The brackets of the IPv6 address do not close.")
        return inner + "]", rest[1:] if rest else None
    if text.count(":") > 1:
        raise BadName("bad_host", "An IPv6 address must stand in brackets.")
    host, colon, port = text.partition(":")
    return host, port if colon else None


def parse_port(text: str) -> int:
    """1–65535 in plain decimal. Raises BadName ``bad_port``."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise BadName("bad_port", "The port is not a number from 1 to 65535.")
    return int(text)


def parse_host(text: str) -> Host:
    """The canonical host. Raises BadName ``bad_host`` for what is no host at all."""
    if text.startswith("["):
        return _parse_ipv6(text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if not text.isascii() or len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadName("bad_host", "The host is not a name of ASCII labels.")
    if not _NUMBER.fullmatch(labels[-1]):
        return Host(text=name, kind="name")
    return Host(text=name, kind="address" if _is_plain_ipv4(text) else "odd")


def _parse_ipv6(text: str) -> Host:
    try:
        address = ipaddress.IPv6Address(text[1:-1])
    except ValueError as error:
        raise BadName("bad_host", "The text in brackets is not an IPv6 address.") from error
    if address.scope_id is not None:
        raise BadName("bad_host", "An IPv6 address with a zone is not accepted.")
    embeds = address.ipv4_mapped is not None or int(address) >> 32 == 0
    # ::ffff:a.b.c.d and ::a.b.c.d (with them ::1 and ::) would be a second spelling of an IPv4 address.
    is_special = address in (ipaddress.IPv6Address("::1"), ipaddress.IPv6Address("::"))
    return Host(text=address.compressed, kind="odd" if embeds and not is_special else "address")


def _is_plain_ipv4(text: str) -> bool:
    try:
        return str(ipaddress.IPv4Address(text)) == text
    except ValueError:
        return False
