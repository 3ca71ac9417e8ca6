"""Which targets a door allows: parsing of the allow-list and the decision. Pure.

Only exact hosts exist so far. An entry ``host`` means ports 443 and 80, ``host:port`` that port alone.
Entries may be written with international letters and are compared as A-labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import idna

from agents.egress.names import BadName, Host, Target, parse_host, parse_port, split_port

DEFAULT_PORTS = frozenset({443, 80})
MAX_ENTRIES = 1000

Scope = Literal["public", "listed_address", "loopback"]
DenyReason = Literal["host_not_allowed", "port_not_allowed", "odd_address"]


class BadEntry(Exception):
    """An entry of an allow-list cannot be understood; the policy as a whole is refused."""

    def __init__(self, entry: str, detail: str) -> None:
        super().__init__(f"Allow entry {entry[:120]!r}: {detail}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """``rules`` are (host, port) pairs; ``hosts`` all listed hosts, to tell a wrong port from a wrong host."""

    rules: frozenset[tuple[str, int]]
    hosts: frozenset[str]
    explicit: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The target may be reached. ``scope`` says which addresses may be dialled for it: ``public`` only those
    of the internet, ``listed_address`` the target, which is itself an address that the policy names,
    ``loopback`` also this host's, since the policy names ``localhost`` with this port."""

    target: Target
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    target: Target
    reason: DenyReason
    detail: str


def parse_policy(entries: Sequence[str]) -> Policy:
    """The policy that ``entries`` describe. Raises BadEntry."""
    if len(entries) > MAX_ENTRIES:
        raise BadEntry(entries[MAX_ENTRIES], f"the list is longer than {MAX_ENTRIES} entries.")
    rules: set[tuple[str, int]] = set()
    explicit: set[tuple[str, int]] = set()
    for entry in entries:
        host, port = _parse_entry(entry)
        if port is None:
            rules.update((host.text, default) for default in DEFAULT_PORTS)
        else:
            rules.add((host.text, port))
            explicit.add((host.text, port))
    return Policy(rules=frozenset(rules), hosts=frozenset(host for host, _ in rules), explicit=frozenset(explicit))


def decide(policy: Policy, target: Target) -> Grant | Denial:
    """Whether ``target`` may be reached. Never looks a name up."""
    host = target.host
    if host.kind == "odd":
        return Denial(target=target, reason="odd_address", detail="The host is an IP address in an ambiguous spelling.")
    if (host.text, target.port) not in policy.rules:
        if host.text in policy.hosts:
            detail = f"{host.text} is allowed, but not on port {target.port}."
            return Denial(target=target, reason="port_not_allowed", detail=detail)
        detail = f"{host.text} is not on the list of allowed hosts."
        return Denial(target=target, reason="host_not_allowed", detail=detail)
    if host.kind == "address":
        return Grant(target=target, scope="listed_address")
    local = host.text == "localhost" and (host.text, target.port) in policy.explicit
    return Grant(target=target, scope="loopback" if local else "public")


def _parse_entry(entry: str) -> tuple[Host, int | None]:
    if "*" in entry:
        raise BadEntry(entry, "wildcards are not supported; list each host.")
    if "/" in entry or "@" in entry:
        raise BadEntry(entry, "give a host or host:port, not a URL.")
    try:
        host_text, port_text = split_port(entry)
        host = parse_host(_to_ascii(host_text))
        port = None if port_text is None else parse_port(port_text)
    except BadName as error:
        raise BadEntry(entry, error.detail) from error
    if host.kind == "odd":
        raise BadEntry(entry, "an address must be in its canonical spelling.")
    return host, port


def _to_ascii(text: str) -> str:
    if text.isascii():
        return text
    try:
        # Not the standard library's codec: IDNA 2003 maps some letters to another registrant's name.
        return idna.encode(text.removesuffix("."), uts46=True, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise BadName("bad_host", f"not an international domain name ({error}).") from error
