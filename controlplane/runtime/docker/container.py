"""The container of a sandbox and its daemon's configuration as pure functions: no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from controlplane.runtime import cgroups, inside, seccomp
from controlplane.runtime.docker.places import SandboxPlace
from controlplane.runtime.port import SandboxSpec

LABEL_DEPLOYMENT = "warmpool.deployment"
LABEL_SANDBOX = "warmpool.sandbox"
LABEL_IMAGE = "warmpool.image"
LABEL_LABELS = "warmpool.labels"
LABEL_EGRESS = "warmpool.egress"

_CGROUPS = "/sys/fs/cgroup"
_CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
# Harmless within a user namespace, where the local runtime gives them too; not without one.
_MAPPED_CAPABILITIES = ("AUDIT_WRITE", "MKNOD", "NET_RAW")
_ENGINE_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "NET_RAW", "MKNOD", "SYS_PTRACE")
_CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a sandbox becomes a container from. ``delegated``: hierarchy → the host's directory that is given
    to it, empty where the engine holds the limits alone; ``cgroup_parent`` is their common path. ``machine``: the
    processor as uname says it, None where the engine has no seccomp."""

    spec: SandboxSpec
    deployment: str
    place: SandboxPlace
    agent: Path
    mapped_root: int
    ca_bundle: Path | None = None
    cgroup_parent: str | None = None
    delegated: Mapping[str, Path] | None = None
    machine: str | None = None


def config(shape: Shape) -> dict[str, Any]:
    """The body of the engine's create call."""
    spec = shape.spec
    return {
        "Image": spec.image,
        "Hostname": spec.id,
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": [],
        "Cmd": list(inside.AGENT_ARGV),
        "Env": list(inside.ENVIRONMENT),
        "Labels": labels(shape),
        "NetworkDisabled": True,
        "HostConfig": _host(shape),
    }


def labels(shape: Shape) -> dict[str, str]:
    """The spec's own labels go into one: an image inherits labels of its container one by one, and the next
    container those of its image."""
    return {
        LABEL_DEPLOYMENT: shape.deployment,
        LABEL_SANDBOX: shape.spec.id,
        LABEL_IMAGE: shape.spec.image,
        LABEL_EGRESS: "1" if shape.spec.egress else "0",
        LABEL_LABELS: msgspec.json.encode(dict(shape.spec.labels)).decode(),
    }


def daemon_config(shape: Shape) -> bytes:
    """sandboxd.json."""
    return inside.daemon_config(
        shape.spec,
        listen={"path": f"{inside.DOOR_IN}/{shape.place.socket_in.name}"},
        egress_socket=shape.place.socket_out.name,
        cgroups_version=1,
        cgroups={name: f"{_CGROUPS}/{name}" for name in cgroups.for_commands(shape.delegated or {})},
        ca_bundle=shape.ca_bundle is not None,
    )


def _host(shape: Shape) -> dict[str, Any]:
    spec = shape.spec
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "IpcMode": "private",
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        "ShmSize": min(spec.resources.memory_bytes // 2, 1 << 30),
        "CapDrop": ["ALL"],
        "CapAdd": _capabilities(shape),
        "SecurityOpt": _security(shape),
        "Tmpfs": {"/run": "rw,nosuid,nodev,exec,mode=755,size=64m"},
        "Mounts": _mounts(shape),
        # The console holds sandboxd's own words only, but root inside can write there: bounded.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
    }
    if spec.docker:
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
    if shape.cgroup_parent:
        # An inner engine finds its own control groups by the host's paths, which are what is mounted.
        host |= {"CgroupParent": shape.cgroup_parent, "CgroupnsMode": "host" if spec.docker else "private"}
        return host
    resources = spec.resources
    return host | {
        "Memory": resources.memory_bytes,
        "MemorySwap": resources.memory_bytes,
        "PidsLimit": resources.pids,
        "CpuPeriod": _CPU_PERIOD_US,
        "CpuQuota": max(1000, int(resources.cpu_cores * _CPU_PERIOD_US)),
    }


def _security(shape: Shape) -> list[str]:
    options = [] if shape.spec.docker else ["no-new-privileges"]
    if shape.machine:
        # Not the engine's own profile: that one refuses calls that an inner engine needs, and a sandbox
        # should be the same on every runtime.
        profile = seccomp.profile(docker=shape.spec.docker, machine=shape.machine)
        options.append(f"seccomp={msgspec.json.encode(profile).decode()}")
    return options


def _capabilities(shape: Shape) -> list[str]:
    wanted = {*_CAPABILITIES}
    if shape.mapped_root:
        wanted |= {*_MAPPED_CAPABILITIES}
    if shape.spec.docker:
        wanted |= {*_ENGINE_CAPABILITIES, *_MAPPED_CAPABILITIES}
    return sorted(wanted)


def _mounts(shape: Shape) -> list[dict[str, Any]]:
    spec, place = shape.spec, shape.place
    mounts = [
        _bind(place.door_in, inside.DOOR_IN),
        _bind(place.config, inside.CONFIG, read_only=True),
        _bind(shape.agent, inside.AGENT, read_only=True),
        _bind(place.spool, inside.SPOOL),
    ]
    if spec.egress:
        mounts.append(_bind(place.door_out, inside.DOOR_OUT, read_only=True))
    if shape.ca_bundle:
        mounts.append(_bind(shape.ca_bundle, inside.CA_BUNDLE, read_only=True))
    if spec.docker:
        mounts.append(_bind(place.engine, inside.ENGINE))
    if shape.delegated:
        options = {"SizeBytes": 1 << 20, "Mode": 0o755}
        mounts.append({"Type": "tmpfs", "Target": _CGROUPS, "TmpfsOptions": options})
        # An engine needs every hierarchy, whether or not commands are placed in it.
        visible = shape.delegated if spec.docker else cgroups.for_commands(shape.delegated)
        mounts += [_bind(shape.delegated[name], f"{_CGROUPS}/{name}") for name in visible]
    return mounts


def _bind(source: Path, target: str, *, read_only: bool = False) -> dict[str, Any]:
    # Private: nothing mounted on the host later shows up inside.
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def read_labels(found: Mapping[str, str]) -> dict[str, str]:
    """The spec's labels of a container; empty if someone else's label of this name is unreadable."""
    try:
        return msgspec.json.decode(found.get(LABEL_LABELS, "{}"), type=dict[str, str])
    except msgspec.DecodeError:
        return {}
