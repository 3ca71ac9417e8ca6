"""What builds may reach by themselves; and that no file of this project names a registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.bases.aptsources import Mirrors
from controlplane.bases.hostconfig import HostConfig, detect
from controlplane.bases.registries import addresses_out_of_range, registries

ROOT = Path(__file__).parents[2]
FOLDERS = ("controlplane", "agents", "images", "scripts", "tests", "docs", "helm", ".ci")
TEXT = {"", ".py", ".sh", ".md", ".json", ".txt", ".cfg", ".toml", ".yaml", ".yml", ".lua"}


def test_each_server_is_named_once_with_the_port_of_its_address() -> None:
    host = HostConfig(
        pip={"index-url": "https://a.example/simple", "extra-index-url": "http://b.example/ https://[2001:db8::1]/x"},
        npm_registry="https://a.example/npm/",
        mirrors=Mirrors(main=("http://c.example:8080/debian",), security=("https://c.example/debian-security",)),
    )
    expected = ("[2001:db8::1]:443", "a.example:443", "b.example:80", "c.example:443", "c.example:8080")
    assert registries(host) == expected


def test_addresses_of_an_internal_mirror_are_told_and_those_of_this_host_never() -> None:
    servers = ("10.1.2.3:80", "[fd00::7]:443", "127.0.0.1:80", "[::1]:80", "169.254.169.254:80", "nowhere.invalid:80")
    assert addresses_out_of_range(servers) == ("10.1.2.3/32", "fd00::7/128")


def test_no_file_names_a_registry_that_this_host_uses() -> None:
    servers = [server.rpartition(":")[0] for server in registries(detect("auto"))]
    # A mirror on the host itself or at a bare address is nobody's public name.
    names = [name for name in servers if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}", name)]
    if not names:
        pytest.skip("this host names no registry")
    pattern = re.compile("|".join(re.escape(name) for name in names))
    found = [
        path.relative_to(ROOT)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in TEXT and path.is_file() and pattern.search(path.read_text(errors="replace"))
    ]
    assert found == []
