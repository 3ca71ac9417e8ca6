"""The OCI bundle of a sandbox as a pure function: no I/O, the same input gives the same config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.runtime import inside
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.seccomp import profile

# What Docker gives by default; all of it counts within the sandbox's user namespace only.
_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"),
    "CAP_AUDIT_WRITE",
)
_ENGINE_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE")
_MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
    *("/sys/devices/virtual/powercap",),
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_HOOK_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Run by the host before the sandbox's first program. What is counted by uid is counted for all user namespaces of
# one owner together: without a share of its own, one sandbox could leave no inotify instance, pending signal or
# message queue to any other, nor to the host's root. $p: the first process; the state comes as JSON.
_SHARES = r"""
while read -r line; do s="$s$line"; done; [ -z "$line" ] || s="$s$line"
p=${s#*'"pid":'}; p=${p# }; p=${p%%[!0-9]*}
read -r i </proc/sys/fs/inotify/max_user_instances; read -r w </proc/sys/fs/inotify/max_user_watches
i=$((i / 8)) w=$((w / 8)); [ "$i" -ge 16 ] || i=16
export p i w
exec nsenter --user="/proc/$p/ns/user" sh -c '
  echo "$i" >/proc/sys/user/max_inotify_instances
  echo "$w" >/proc/sys/user/max_inotify_watches
  exec prlimit --pid "$p" --sigpending=8192 --msgqueue=102400'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleInput:
    """``cgroup``: the delegated directory's path below each hierarchy's root. ``cgroup_mounts``: host
    directory → path inside. ``binds``: (host path, path inside, read-only). ``machine``: as uname says it.
    ``shm_bytes``: size of /dev/shm."""

    hostname: str
    rootfs: Path
    ids: IdRange
    cgroup: str
    cgroup_version: int
    cgroup_mounts: Mapping[str, str]
    binds: tuple[tuple[Path, str, bool], ...]
    machine: str
    argv: tuple[str, ...] = inside.AGENT_ARGV
    docker: bool = False
    shm_bytes: int = 64 * 1024 * 1024


def config(given: BundleInput) -> dict[str, Any]:
    """The ``config.json``."""
    capabilities = [*_CAPABILITIES, *(_ENGINE_CAPABILITIES if given.docker else ())]
    return {
        "ociVersion": "1.0.2",
        "hostname": given.hostname,
        "root": {"path": str(given.rootfs), "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0, "umask": 0o022},
            "args": list(given.argv),
            "env": list(inside.ENVIRONMENT),
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            # No rlimits: raising one needs a capability that hosts may lack, and cgroups hold the limits.
            "noNewPrivileges": not given.docker,
        },
        "mounts": _mounts(given),
        "hooks": {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", _SHARES], "env": [_HOOK_PATH]}]},
        "linux": _linux(given),
    }


def _linux(given: BundleInput) -> dict[str, Any]:
    mapping = [{"containerID": 0, "hostID": given.ids.start, "size": given.ids.count}]
    kinds = ("pid", "network", "ipc", "uts", "mount", "cgroup", "user")
    return {
        "cgroupsPath": f"/{given.cgroup}",
        "namespaces": [{"type": kind} for kind in kinds],
        "uidMappings": mapping,
        "gidMappings": mapping,
        "resources": {"devices": _devices()},
        "maskedPaths": [] if given.docker else list(_MASKED),
        "readonlyPaths": [] if given.docker else list(_READ_ONLY),
        "seccomp": profile(docker=given.docker, machine=given.machine),
    }


def _devices() -> list[dict[str, Any]]:
    """Nothing but the harmless ones; making a node is allowed, opening it is not."""
    allowed = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))
    rules: list[dict[str, Any]] = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "access": "m"},
        {"allow": True, "type": "b", "access": "m"},
    ]
    for major, minor in allowed:
        rule: dict[str, Any] = {"allow": True, "type": "c", "major": major, "access": "rwm"}
        rules.append(rule if minor is None else {**rule, "minor": minor})
    return rules


def _mounts(given: BundleInput) -> list[dict[str, Any]]:
    plain = ("nosuid", "noexec", "nodev")
    sysfs = plain if given.docker else (*plain, "ro")
    mounts = [
        _mount("/proc", "proc", "proc", *plain),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount(
            *("/dev/pts", "devpts", "devpts", "nosuid", "noexec"), "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"
        ),
        _mount("/dev/shm", "tmpfs", "shm", *plain, "mode=1777", f"size={given.shm_bytes}"),
        _mount("/dev/mqueue", "mqueue", "mqueue", *plain),
        _mount("/sys", "sysfs", "sysfs", *sysfs),
        _mount("/run", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=755", "size=64m"),
        *_cgroup_mounts(given),
    ]
    for source, path, read_only in given.binds:
        mode = ("ro",) if read_only else ()
        mounts.append(_mount(path, "bind", str(source), "bind", "nosuid", "nodev", *mode))
    return mounts


def _cgroup_mounts(given: BundleInput) -> list[dict[str, Any]]:
    """Binds of the delegated directories rather than a cgroup mount: on a hybrid host runc's own leaves out
    the unified hierarchy, and what is bound is exactly what was delegated."""
    options = ("bind", "nosuid", "noexec", "nodev")
    mounts = [_mount(path, "bind", source, *options) for source, path in given.cgroup_mounts.items()]
    if given.cgroup_version == 2:
        return mounts
    top = _mount("/sys/fs/cgroup", "tmpfs", "tmpfs", "nosuid", "noexec", "nodev", "mode=755", "size=1m")
    return [top, *mounts]


def _mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}
