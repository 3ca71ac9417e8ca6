"""The package registries that this host itself uses: builds may reach them, wherever they are.

Their names come from the host's configuration, or from the tools' own defaults; none is written here.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path

from controlplane.bases.aptsources import host_mirrors
from controlplane.bases.hostconfig import HostConfig


def registries(host: HostConfig, root: Path = Path("/")) -> tuple[str, ...]:
    """``host:port`` of pip's index and file store, apt's mirrors and npm's registry, as far as they are known."""
    found = set(host.hosts())
    if "index-url" not in host.pip:
        found |= set(_pip_defaults())
    mirrors = host_mirrors(root / "etc/apt")
    for url in (*mirrors.main, *mirrors.security):
        found.add(_with_port(url))
    return tuple(sorted(found))


def _pip_defaults() -> tuple[str, ...]:
    """pip knows its own index; without pip there is no default to know."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return ()
    return (f"{PyPI.netloc}:443", f"{PyPI.file_storage_domain}:443")


def _with_port(url: str) -> str:
    scheme, _, rest = url.partition("://")
    netloc = rest.partition("/")[0]
    return netloc if ":" in netloc else f"{netloc}:{443 if scheme == 'https' else 80}"


def addresses_out_of_range(hosts: Iterable[str]) -> tuple[str, ...]:
    """Addresses of these that are not public (an internal mirror's), as networks of one address each.

    The egress gateway refuses such addresses unless it is told of them. Loopback and link-local stay refused.
    A name that does not resolve now is left out."""
    found = set()
    for entry in hosts:
        name = entry.rpartition(":")[0]
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            continue
        for answer in answers:
            address = ipaddress.ip_address(str(answer[4][0]).partition("%")[0])
            if not (address.is_global or address.is_loopback or address.is_link_local or address.is_multicast):
                found.add(str(ipaddress.ip_network(address)))
    return tuple(sorted(found))
