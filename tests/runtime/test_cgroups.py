"""Finding hierarchies and writing limits, on directories that stand for a version 2 and a hybrid host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controlplane.model.resources import MIB, Resources
from controlplane.runtime import cgroups
from controlplane.runtime.cgroups import Hierarchies

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime shared:9 - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
LIMITS = Resources(memory_bytes=64 * MIB, cpu_cores=1.5, pids=99)
ME = os.getuid()


def test_hybrid_hosts_have_one_root_a_hierarchy_and_the_unified_one() -> None:
    found = cgroups.find(HYBRID)
    assert found.version == 1
    assert found.roots == {
        "cpu,cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Path("/sys/fs/cgroup/memory"),
        "systemd": Path("/sys/fs/cgroup/systemd"),
        "unified": Path("/sys/fs/cgroup/unified"),
    }
    assert cgroups.controllers(found) >= {"cpu", "cpuacct", "memory"}


def test_version_2_hosts_have_one_root() -> None:
    assert cgroups.find(UNIFIED) == Hierarchies(version=2, roots={"v2": Path("/sys/fs/cgroup")})
    assert cgroups.find("") == Hierarchies(version=2, roots={})


def fake_v2(root: Path) -> Hierarchies:
    """A version 2 tree as far as files go: each directory on the way offers the controllers."""
    for folder in (root, root / "warmpool", root / "warmpool/sb-1"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (folder / "cgroup.subtree_control").write_text("")
    for file in ("memory.swap.max", "cgroup.procs"):
        (root / "warmpool/sb-1" / file).write_text("")
    delegated = root / "warmpool/sb-1/cmds"
    delegated.mkdir()
    (delegated / "memory.max").write_text("max")
    return Hierarchies(version=2, roots={"v2": root})


def test_version_2_limits_stand_above_the_delegated_directory(tmp_path: Path) -> None:
    found = fake_v2(tmp_path)
    cgroups.create(found, "warmpool/sb-1", LIMITS, ME)
    group = tmp_path / "warmpool/sb-1"
    assert (group / "memory.max").read_text() == str(64 * MIB)
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "pids.max").read_text() == "99"
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "cmds/memory.max").read_text() == "max"
    for folder in (tmp_path, tmp_path / "warmpool", group):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_only_the_files_that_move_processes_are_handed_over(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to change owners")
    found = fake_v2(tmp_path)
    delegated = tmp_path / "warmpool/sb-1/cmds"
    (delegated / "cgroup.procs").write_text("")
    cgroups.create(found, "warmpool/sb-1", LIMITS, 200_000)
    assert delegated.stat().st_uid == 200_000
    assert (delegated / "cgroup.procs").stat().st_uid == 200_000
    assert (delegated / "memory.max").stat().st_uid == 0
    assert (tmp_path / "warmpool/sb-1/memory.max").stat().st_uid == 0


@pytest.mark.real
def test_a_group_of_this_host_is_made_limited_and_removed() -> None:
    found = cgroups.find(Path("/proc/self/mountinfo").read_text())
    path = f"warmpool/test-{os.getpid()}"
    try:
        cgroups.create(found, path, LIMITS, 200_000)
        cgroups.create(found, path, LIMITS, 200_000)
        for directory in found.directories(path).values():
            assert (directory / cgroups.DELEGATED).stat().st_uid == 200_000
        files = {"v2": "pids.max", "pids": "pids.max"}
        limits = [found.roots[name] / path / file for name, file in files.items() if name in found.roots]
        assert [file.read_text().strip() for file in limits] == ["99"]
    finally:
        cgroups.kill(found, path)
        cgroups.remove(found, path)
    assert not any(directory.exists() for directory in found.directories(path).values())
    cgroups.remove(found, path)
