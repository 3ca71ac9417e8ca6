"""scripts/engine: a private Docker Engine that comes, answers, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.engines import ROOT
from tests.runtime.stage import short_folder

pytestmark = pytest.mark.real


@pytest.fixture
def folder() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with short_folder() as path:
        yield path
        _engine("stop", path)


def test_it_starts_once_answers_with_a_user_namespace_and_leaves_nothing(folder: Path) -> None:
    first = _engine("start", folder)
    assert first.stdout == f"DOCKER_HOST=unix://{folder}/docker.sock\n"
    assert _engine("start", folder).stdout == first.stdout
    assert _engine("status", folder).returncode == 0
    assert "name=userns" in _info(folder)["SecurityOptions"]
    cgroup = json.loads((folder / "engine.json").read_text())["cgroup"]
    assert _engine("stop", folder).returncode == 0
    assert _left(folder, cgroup) == []
    assert _engine("status", folder).returncode == 1
    assert _engine("stop", folder).returncode == 0


def test_after_a_kill_the_next_start_cleans_up_and_answers(folder: Path) -> None:
    _engine("start", folder)
    before = json.loads((folder / "engine.json").read_text())
    for process in before["processes"]:
        os.kill(process["pid"], signal.SIGKILL)
    assert _engine("start", folder).returncode == 0
    assert _info(folder)["Containers"] == 0
    after = json.loads((folder / "engine.json").read_text())
    _engine("stop", folder)
    for cgroup in (before["cgroup"], after["cgroup"]):
        assert _left(folder, cgroup) == []


def test_a_folder_too_deep_for_a_socket_is_refused_with_the_reason(folder: Path) -> None:
    deep = folder / ("d" * 100)
    refused = subprocess.run(_argv("start", deep), capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "shorter --dir" in refused.stderr


def _argv(command: str, folder: Path) -> list[str]:
    return [str(ROOT / "scripts" / "engine"), command, "--dir", str(folder)]


def _engine(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_argv(command, folder), stdout=subprocess.PIPE, text=True, timeout=100, check=False)


def _info(folder: Path) -> dict:  # type: ignore[type-arg]
    client = docker.APIClient(base_url=f"unix://{folder}/docker.sock")
    try:
        return client.info()
    finally:
        client.close()


def _left(folder: Path, cgroup: str) -> list[str]:
    """Processes, mounts and control groups of the engine of ``folder``."""
    left = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    left += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{cgroup}")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(os.fsencode(folder / "containerd.sock")) for word in words):
            left.append(f"{path.parent.name}: {words!r}")
    return left
