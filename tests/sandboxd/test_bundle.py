"""The bundle: built once, whole or not at all, and quick to start under the sandbox's own Python."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agents.sandboxd import VERSION
from agents.wire import Ready
from controlplane.runtime.agentbundle import bundle_digest, ensure_agent_bundle
from controlplane.runtime.inside import AGENT_ARGV
from tests.sandboxd.daemon import Daemon, decoded, running

SYSTEM_PYTHON = Path("/usr/bin/python3")


def system_python_version() -> str:
    if not SYSTEM_PYTHON.exists():
        return "none"
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([SYSTEM_PYTHON, "-I", "-c", question], capture_output=True, text=True).stdout.strip()


async def test_a_bundle_is_built_once_and_found_again(tmp_path: Path) -> None:
    first = await ensure_agent_bundle(tmp_path)
    assert first == tmp_path / "agent-bundle" / bundle_digest()
    before = (first / "run.py").stat().st_ino
    assert await ensure_agent_bundle(tmp_path) == first
    assert (first / "run.py").stat().st_ino == before


async def test_two_builders_at_once_end_with_one_bundle(tmp_path: Path) -> None:
    build = "import asyncio, sys; from pathlib import Path; from controlplane.runtime.agentbundle import *; "
    build += "print(asyncio.run(ensure_agent_bundle(Path(sys.argv[1]))))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    both = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = {(await process.communicate())[0] for process in both}
    assert len(outputs) == 1
    assert sorted(path.name for path in (tmp_path / "agent-bundle").iterdir()) == sorted([bundle_digest(), "lock"])


async def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "agent-bundle" / "tmp-killed"
    leftover.mkdir(parents=True)
    await ensure_agent_bundle(tmp_path)
    assert not leftover.exists()


async def test_a_bundle_is_readable_by_all_and_compiled_for_a_read_only_mount(tmp_path: Path) -> None:
    bundle = await ensure_agent_bundle(tmp_path)
    for path in [bundle, *bundle.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
    compiled = list((bundle / "agents" / "sandboxd" / "__pycache__").glob("*.cpython-311.pyc"))
    assert len(compiled) == len(list((bundle / "agents" / "sandboxd").glob("*.py")))
    unchecked_hash = 1
    assert {int.from_bytes(path.read_bytes()[4:8], "little") for path in compiled} == {unchecked_hash}
    assert not (bundle / "agents" / "egress").exists()


def test_the_daemon_tells_the_version_of_the_distribution() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION


@pytest.mark.skipif(system_python_version() != "3.11", reason="/usr/bin/python3 is not 3.11")
async def test_the_bundle_starts_small_and_soon_and_binds_fast(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Wide bounds here, since machines differ; what was measured is in the report's properties."""
    bundle = await ensure_agent_bundle(tmp_path)
    for folder in [bundle, *bundle.parents]:  # nothing above keeps the daemon's own user out
        assert folder.stat().st_mode & 0o100
    command = [str(SYSTEM_PYTHON), *AGENT_ARGV[1:3], str(bundle / "run.py")]
    started = time.monotonic()
    async with running(command=command) as daemon:
        assert decoded(await daemon.call("GET", "/v1/ready?wait_s=10"), Ready).ready
        ready_ms = (time.monotonic() - started) * 1000
        rss_mb = resident_mb(daemon)
        bind_ms = statistics.median([await timed_bind(daemon) for _ in range(200)])
        assert (await daemon.run("echo ok")).stdout == "ok\n"
        if os.geteuid() == 0:  # it shows its memory to nobody else, not even to its own user
            modules = Path(f"/proc/{daemon.process.pid}/maps").read_text()
            assert "dist-packages" not in modules, "only the bundle and the standard library"
    for name, value in (("ready_ms", ready_ms), ("rss_mb", rss_mb), ("bind_p50_ms", bind_ms)):
        record_property(name, round(value, 2))
        print(f"{name}: {value:.2f}")
    assert rss_mb <= 40
    assert ready_ms <= 250 * 8
    assert bind_ms <= 0.6 * 8


def resident_mb(daemon: Daemon) -> float:
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def timed_bind(daemon: Daemon) -> float:
    started = time.perf_counter()
    assert (await daemon.bind("se-1")).status_code == 200
    return (time.perf_counter() - started) * 1000
