"""The bundle is a pure function; what it must never hold, and what it must always hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.runtime.local import bundle
from controlplane.runtime.local.bundle import BundleInput
from controlplane.runtime.local.idrange import IdRange

GIVEN = BundleInput(
    hostname="sb-1",
    rootfs=Path("/state/sandboxes/sb-1/rootfs"),
    ids=IdRange(start=300_000),
    cgroup="warmpool/d/sb-1/cmds",
    cgroup_version=1,
    cgroup_mounts={"/sys/fs/cgroup/memory/warmpool/d/sb-1/cmds": "/sys/fs/cgroup/memory"},
    binds=((Path("/state/agent"), "/opt/warmpool", True), (Path("/state/spool"), "/var/lib/warmpool", False)),
    machine="x86_64",
)


def allowed(config: dict[str, Any]) -> set[str]:
    rules = config["linux"]["seccomp"]["syscalls"]
    return {
        name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule for name in rule["names"]
    }


@given(docker=st.booleans(), start=st.integers(min_value=65_536, max_value=2**31), version=st.sampled_from([1, 2]))
def test_every_bundle_has_a_user_namespace_of_its_own_and_no_network(docker: bool, start: int, version: int) -> None:
    config = bundle.config(replace(GIVEN, docker=docker, ids=IdRange(start=start), cgroup_version=version))
    kinds = {entry["type"] for entry in config["linux"]["namespaces"]}
    assert kinds == {"pid", "network", "ipc", "uts", "mount", "cgroup", "user"}
    assert all("path" not in entry for entry in config["linux"]["namespaces"])
    assert config["linux"]["uidMappings"] == [{"containerID": 0, "hostID": start, "size": 65536}]
    assert config["linux"]["gidMappings"] == config["linux"]["uidMappings"]
    assert config["linux"]["resources"].keys() == {"devices"}
    assert "rlimits" not in config["process"]
    assert json.loads(json.dumps(config)) == config


def test_the_same_input_gives_the_same_bundle() -> None:
    assert bundle.config(GIVEN) == bundle.config(replace(GIVEN))


def test_mount_rights_and_open_proc_come_with_docker_only() -> None:
    plain, engine = bundle.config(GIVEN), bundle.config(replace(GIVEN, docker=True))
    assert {"mount", "unshare", "setns", "pivot_root", "keyctl"} & allowed(plain) == set()
    assert {"mount", "unshare", "setns", "pivot_root"} <= allowed(engine)
    assert "keyctl" not in allowed(engine)
    assert "CAP_SYS_ADMIN" not in plain["process"]["capabilities"]["bounding"]
    assert "CAP_SYS_ADMIN" in engine["process"]["capabilities"]["bounding"]
    assert plain["process"]["noNewPrivileges"] and not engine["process"]["noNewPrivileges"]
    assert plain["linux"]["maskedPaths"] and not engine["linux"]["maskedPaths"]


@pytest.mark.parametrize("docker", [False, True])
def test_calls_that_reach_the_hosts_kernel_are_never_allowed(docker: bool) -> None:
    config = bundle.config(replace(GIVEN, docker=docker))
    reach = {
        "bpf",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "open_by_handle_at",
    }
    reach |= {"perf_event_open", "userfaultfd", "iopl", "ioperm", "swapon", "reboot", "settimeofday", "io_uring_setup"}
    assert reach & allowed(config) == set()
    assert config["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"


def test_read_only_binds_are_read_only() -> None:
    mounts = {mount["destination"]: mount for mount in bundle.config(GIVEN)["mounts"]}
    assert "ro" in mounts["/opt/warmpool"]["options"]
    assert "ro" not in mounts["/var/lib/warmpool"]["options"]
    assert "ro" in mounts["/sys"]["options"]


def test_an_outer_mount_always_comes_before_what_lies_in_it() -> None:
    seen: list[str] = []
    for mount in bundle.config(GIVEN)["mounts"]:
        assert not any(earlier.startswith(mount["destination"] + "/") for earlier in seen)
        seen.append(mount["destination"])
