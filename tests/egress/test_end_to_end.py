"""Real programs through a real gateway process: git, pip, and large uploads."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from agents.egress.addresses import is_public
from agents.egress.dial import parse_reachable_network
from agents.wire.egress import DoorReport
from controlplane.bases.hostconfig import detect
from controlplane.ids import SandboxId
from tests.gitserver.loading import GitServer, git, make_repository

from .forwarder import forwarding_to
from .parts import Client
from .process import GatewayProcess
from .uploads import UploadServer

PACKAGE = "six"
HOST_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_HOST = detect("auto")
# The one that pip uses here.
INDEX = _HOST.pip.get("index-url", _HOST.pip_own[0]).rstrip("/") + "/"
MIB = 1024 * 1024
UPLOAD_BYTES = 200 * MIB


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("g")
    yield made
    shutil.rmtree(made)


async def door_report(gateway: GatewayProcess) -> DoorReport:
    return await gateway.client.get_door(SandboxId("sb-1"))


async def test_git_clones_through_the_gateway_what_is_listed_and_nothing_else(folder: Path) -> None:
    make_repository(folder / "repositories" / "demo")
    with GitServer(folder / "repositories") as server:
        async with GatewayProcess(folder) as gateway:
            door = await gateway.open("sb-1", f"127.0.0.1:{server.port}")
            with forwarding_to(door) as proxy:
                proxied = {"http_proxy": proxy, "no_proxy": ""}
                git("clone", f"{server.url}/demo/.git", str(folder / "clone"), env=proxied)
                assert (folder / "clone" / "README").read_text() == "hello\n"
                with pytest.raises(subprocess.CalledProcessError) as caught:
                    git("clone", "http://evil.test/demo/.git", str(folder / "evil"), env=proxied)
            report = await door_report(gateway)
    assert "403" in caught.value.stderr
    assert report.allowed >= 2 and report.denied == {"host_not_allowed": 1} and report.failed == {}


async def test_pip_downloads_a_package_by_https_through_the_gateway(folder: Path) -> None:
    hosts = _index_hosts()
    options = [text for host in hosts for text in _reachable_options(host)]
    async with GatewayProcess(folder, *options) as gateway:
        door = await gateway.open("sb-1", *hosts)
        with forwarding_to(door) as proxy:
            _pip_download(folder / "wheels", proxy)
        report = await door_report(gateway)
    assert [path.name for path in (folder / "wheels").iterdir() if path.name.startswith(PACKAGE)]
    assert report.allowed >= 1 and report.bytes_down > 10_000 and report.denied == {}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["length", "chunked", "tunnel"])
async def test_an_upload_of_200_mb_arrives_whole_and_costs_the_gateway_no_memory(folder: Path, way: str) -> None:
    block = os.urandom(MIB)
    expected = hashlib.sha256()
    for _ in range(UPLOAD_BYTES // MIB):
        expected.update(block)
    with UploadServer() as server:
        async with GatewayProcess(folder) as gateway:
            target = f"127.0.0.1:{server.port}"
            door = await gateway.open("sb-1", target)
            assert await _upload(door, target, way, block, blocks=2) == hashlib.sha256(block * 2).hexdigest()
            before = gateway.memory_bytes("VmRSS")
            assert await _upload(door, target, way, block, blocks=UPLOAD_BYTES // MIB) == expected.hexdigest()
            grown = gateway.memory_bytes("VmHWM") - before
            assert (await door_report(gateway)).bytes_up > UPLOAD_BYTES
    assert grown < 16 * MIB


async def _upload(door: Path, target: str, way: str, block: bytes, *, blocks: int) -> str:
    """The SHA-256 that the upstream saw."""
    async with Client(door) as client:
        url = "/" if way == "tunnel" else f"http://{target}/"
        if way == "tunnel":
            await client.connect(target)
        framing = "Transfer-Encoding: chunked" if way == "chunked" else f"Content-Length: {blocks * len(block)}"
        await client.send(f"PUT {url} HTTP/1.1\r\nHost: {target}\r\n{framing}\r\n\r\n".encode())
        for _ in range(blocks):
            await client.send(b"%x\r\n" % len(block) + block + b"\r\n" if way == "chunked" else block)
        if way == "chunked":
            await client.send(b"0\r\n\r\n")
        reply = await client.reply()
    assert reply.status == 200
    return reply.body.decode()


def _index_hosts() -> list[str]:
    """The index's host and those that it serves files from; skips where it cannot be reached directly."""
    try:
        with urllib.request.urlopen(f"{INDEX}{PACKAGE}/", timeout=15) as answer:
            page = answer.read().decode()
    except OSError as error:
        pytest.skip(f"the package index cannot be reached from here: {error}")
    links = [urljoin(f"{INDEX}{PACKAGE}/", link) for link in re.findall(r'href="([^"]+)"', page)]
    hosts = {urlsplit(link).hostname for link in [INDEX, *links]}
    return sorted(host for host in hosts if host)


def _reachable_options(host: str) -> list[str]:
    """Declares the host's addresses reachable where the network here resolves it to a mirror of its own."""
    options = []
    for address in {ip_address(answer[4][0]) for answer in socket.getaddrinfo(host, 443)}:
        if not is_public(address):
            try:
                parse_reachable_network(str(address))
            except ValueError:
                pytest.skip(f"the package index is a mirror on this host itself: {address}")
            options += ["--reachable-network", str(address)]
    return options


def _pip_download(into: Path, proxy: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
    if HOST_AUTHORITIES.exists():
        # Not every pip asks for the host's own.
        environment.setdefault("PIP_CERT", str(HOST_AUTHORITIES))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--index-url", INDEX, "--proxy", proxy, "--dest", str(into), PACKAGE]
    done = subprocess.run(
        command, env={**environment, "PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
