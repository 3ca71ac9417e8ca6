"""The container of a sandbox, as it is asked of the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from controlplane.ids import SandboxId
from controlplane.model.resources import MIB, Resources
from controlplane.runtime.docker.container import Shape, config, daemon_config, read_labels
from controlplane.runtime.docker.places import SandboxPlace
from controlplane.runtime.port import SandboxSpec

SPEC = SandboxSpec(
    id=SandboxId("sb-1"),
    image="warmpool-t/base:x",
    resources=Resources(memory_bytes=64 * MIB, cpu_cores=0.5, pids=32),
    labels={"pool": "acme/demo"},
    door_key_hex="ab" * 32,
)
SHAPE = Shape(
    spec=SPEC,
    deployment="t",
    place=SandboxPlace(Path("/s/sb-1")),
    agent=Path("/s/agent"),
    mapped_root=100_000,
    cgroup_parent="/p/sb-1/cmds",
    delegated={name: Path(f"/c/{name}/p/sb-1/cmds") for name in ("memory", "pids", "cpu", "devices", "unified")},
    machine="x86_64",
)
ALONE = replace(SHAPE, cgroup_parent=None, delegated=None)


def test_where_the_host_delegates_the_limits_stand_above_the_container() -> None:
    host = config(SHAPE)["HostConfig"]
    assert host["CgroupParent"] == "/p/sb-1/cmds"
    assert "Memory" not in host
    targets = {mount["Target"] for mount in host["Mounts"]}
    assert {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"} < targets
    assert "/sys/fs/cgroup/devices" not in targets
    assert json.loads(daemon_config(SHAPE))["cgroups"]["roots"] == {
        name: f"/sys/fs/cgroup/{name}" for name in ("memory", "pids", "cpu", "unified")
    }


def test_where_it_cannot_the_engine_holds_them_without_any_swap() -> None:
    host = config(ALONE)["HostConfig"]
    limits = {name: host[name] for name in ("Memory", "MemorySwap", "PidsLimit", "CpuPeriod", "CpuQuota")}
    assert limits == {
        "Memory": 64 * MIB,
        "MemorySwap": 64 * MIB,
        "PidsLimit": 32,
        "CpuPeriod": 100_000,
        "CpuQuota": 50_000,
    }
    assert "CgroupParent" not in host
    assert json.loads(daemon_config(ALONE))["cgroups"] is None


def test_the_key_is_in_the_daemons_file_only() -> None:
    assert SPEC.door_key_hex in daemon_config(SHAPE).decode()
    assert SPEC.door_key_hex not in json.dumps(config(SHAPE))


def test_without_a_user_namespace_root_gets_fewer_capabilities() -> None:
    mapped = set(config(SHAPE)["HostConfig"]["CapAdd"])
    unmapped = set(config(replace(SHAPE, mapped_root=0))["HostConfig"]["CapAdd"])
    assert mapped - unmapped == {"AUDIT_WRITE", "MKNOD", "NET_RAW"}
    assert "SYS_ADMIN" not in mapped
    assert config(SHAPE)["HostConfig"]["CapDrop"] == ["ALL"]


def test_only_a_sandbox_with_an_engine_gets_what_one_needs() -> None:
    plain = config(SHAPE)["HostConfig"]
    nested = config(replace(SHAPE, spec=replace(SPEC, docker=True)))["HostConfig"]
    assert "no-new-privileges" in plain["SecurityOpt"]
    assert "MaskedPaths" not in plain
    assert set(nested["CapAdd"]) - set(plain["CapAdd"]) == {"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"}
    added = {mount["Target"] for mount in nested["Mounts"]} - {mount["Target"] for mount in plain["Mounts"]}
    assert added == {"/var/lib/docker", "/sys/fs/cgroup/devices"}


def test_what_the_sandbox_must_not_change_is_mounted_read_only() -> None:
    mounts = config(replace(SHAPE, spec=replace(SPEC, egress=True), ca_bundle=Path("/ca.pem")))["HostConfig"]["Mounts"]
    fixed = {mount["Target"] for mount in mounts if mount.get("ReadOnly")}
    assert fixed == {"/run/warmpool/config", "/run/warmpool/out", "/opt/warmpool", "/run/warmpool/ca.pem"}


def test_labels_are_read_back_and_unreadable_ones_are_none() -> None:
    assert read_labels(config(SHAPE)["Labels"]) == {"pool": "acme/demo"}
    assert read_labels({"warmpool.labels": "{"}) == {}
    assert read_labels({}) == {}
