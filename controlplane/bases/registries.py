"""What a build may reach without its template naming it: the package registries that this host itself uses.

Their names come from the host's configuration, or from the tools' own defaults; none is written here.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from controlplane.bases.hostconfig import PIP_URLS, HostConfig


def registries(host: HostConfig) -> tuple[str, ...]:
    """``host:port`` of pip's indexes, npm's registry and apt's mirrors, as far as ``host`` names them, sorted.

    pip's own index, which keeps its files on another server, counts where the host names no other or the
    same. Nothing for a host whose settings are not to be used."""
    urls = [url for option in PIP_URLS for url in host.pip.get(option, "").split()]
    urls += [host.npm_registry] if host.npm_registry else []
    urls += [*host.mirrors.main, *host.mirrors.security]
    found = {_server(url) for url in urls}
    own = {_server(url) for url in host.pip_own}
    if "index-url" not in host.pip or found & own:
        found |= own
    return tuple(sorted(found))


def _server(url: str) -> str:
    parts = urlsplit(url)
    name = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def addresses_out_of_range(hosts: Iterable[str]) -> tuple[str, ...]:
    """Addresses of these that are not public (an internal mirror's), as networks of one address each.

    The egress gateway refuses such addresses unless it is told of them. Loopback and link-local stay refused.
    A name that does not resolve now is left out."""
    found = set()
    for entry in hosts:
        name = entry.rpartition(":")[0].strip("[]")
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            continue
        for answer in answers:
            address = ipaddress.ip_address(str(answer[4][0]).partition("%")[0])
            if not (address.is_global or address.is_loopback or address.is_link_local or address.is_multicast):
                found.add(str(ipaddress.ip_network(address)))
    return tuple(sorted(found))
