"""The report says what a trial showed, and what to do where one cannot be made."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.errors import Permanent
from controlplane.runtime import cgroups
from controlplane.runtime.cgroups import Hierarchies
from controlplane.runtime.local import probe
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.records import StatePlaces

pytestmark = pytest.mark.real


@pytest.fixture
def given(state_dir: Path) -> probe.ProbeInput:
    return probe.ProbeInput(
        places=StatePlaces.at(state_dir / "local"),
        hierarchies=cgroups.find(Path("/proc/self/mountinfo").read_text()),
        ids=IdRange(start=200_000),
        cgroup=f"warmpool/{state_dir.name}/probe",
        oci_runtime="auto",
    )


async def test_a_host_with_runc_and_cgroups_holds_every_wall(given: probe.ProbeInput) -> None:
    report = await probe.capabilities(given)
    assert report.usable, report.reason
    assert "run" in report.version
    assert [wall.name for wall in report.isolation if not wall.held] == []
    assert {limit.name for limit in report.limits if limit.held} >= {"memory", "cpu", "pids"}
    leftovers = [path.name for path in given.places.root.iterdir() if "probe" in path.name]
    assert leftovers == []


async def test_a_missing_runtime_is_named_with_the_command_that_installs_one(given: probe.ProbeInput) -> None:
    report = await probe.capabilities(replace(given, oci_runtime="/nowhere/runc"))
    assert not report.usable
    assert "/nowhere/runc" in report.reason and report.fix.startswith("apt-get install")
    with pytest.raises(Permanent, match="/nowhere/runc"):
        probe.choose_binary("/nowhere/runc")


async def test_a_folder_that_sandboxes_cannot_pass_is_named(given: probe.ProbeInput, state_dir: Path) -> None:
    shut = state_dir / "shut"
    shut.mkdir(mode=0o700)
    report = await probe.capabilities(replace(given, places=StatePlaces.at(shut / "local")))
    assert not report.usable
    assert f"chmod o+x {shut}" in report.fix


async def test_a_host_without_cgroups_is_not_usable(given: probe.ProbeInput) -> None:
    report = await probe.capabilities(replace(given, hierarchies=Hierarchies(version=2, roots={})))
    assert not report.usable and "cgroup" in report.reason


async def test_a_runtime_that_starts_nothing_is_reported_with_its_words(
    given: probe.ProbeInput, state_dir: Path
) -> None:
    broken = state_dir / "broken-runtime"
    broken.write_text("#!/bin/sh\necho 'cgroups: hybrid is not supported' >&2\nexit 1\n")
    broken.chmod(0o755)
    report = await probe.capabilities(replace(given, oci_runtime=str(broken)))
    assert not report.usable
    assert "hybrid is not supported" in report.reason


async def test_without_root_what_cannot_be_held_is_named_and_what_to_do(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from controlplane.bootstrap.operator import examine\n"
        "from controlplane.settings import Settings\n"
        "import docker, pip._internal.models.index, controlplane.runtime.docker.probe\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); os.environ['HOME'] = '/nonexistent'\n"
        "found = asyncio.run(examine(Settings(state_dir=Path(sys.argv[1]))))\n"
        "print(found.chosen)\n"
        "for report in found.runtimes:\n"
        "    held = [row.name for row in (*report.limits, *report.isolation) if not row.held]\n"
        "    print(report.runtime, report.usable, report.fix, *held, sep='|')\n"
    )
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    chosen, local, docker = output.decode().splitlines()
    assert chosen == "None"
    assert local.split("|")[:2] == ["local", "False"] and docker.split("|")[:2] == ["docker", "False"]
    assert "as root: sudo" in local and "as root: sudo" in docker
    assert {"memory", "cpu", "pids", "disk", "user_namespace"} <= set(local.split("|"))
