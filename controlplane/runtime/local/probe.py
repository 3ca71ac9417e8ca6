"""What this host can hold, found out by trying: a real container from a trial bundle, a real loop image.

The trial's root file system is made of the host's own /usr, bound read-only: no base is needed for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import platform
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import Permanent, WarmpoolError
from controlplane.model.resources import MIB, Resources
from controlplane.runtime import cgroups
from controlplane.runtime.cgroups import Hierarchies
from controlplane.runtime.local import assembly, bundle, kernel
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.process import run
from controlplane.runtime.local.records import SandboxPlace, StatePlaces
from controlplane.runtime.port import Capabilities, Held
from controlplane.runtime.seccomp import MACHINES

_TRIAL_TIMEOUT_S = 20.0
_TRIAL_LIMITS = Resources(memory_bytes=64 * MIB, cpu_cores=0.5, pids=32)
_INSTALL = "apt-get install -y runc"
# Prints one line per fact; a missing line is a fact that does not hold.
_TRIAL = r"""
read -r inner outer count </proc/self/uid_map
[ "$inner" = 0 ] && [ "$outer" != 0 ] && echo user_namespace
[ "$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ')" = lo ] && echo network_none
grep -q '^Seccomp:[[:space:]]*2' /proc/self/status && echo seccomp
[ -c /proc/timer_list ] && ! (: >/proc/sys/kernel/hostname) 2>/dev/null && echo masked_paths
reachable=0
for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    [ -e "$file" ] && { echo 1073741824 >"$file"; } 2>/dev/null && reachable=1
done
[ "$reachable" = 0 ] && echo limits_out_of_reach
made=0
for root in ROOTS; do
    mkdir "$root/trial" && rmdir "$root/trial" || made=1
done
[ "$made" = 0 ] && echo cgroup_per_command
exit 0
"""
_ENGINE_TRIAL = r"""
mkdir -p /var/lib/docker/a /var/lib/docker/b /var/lib/docker/c /var/lib/docker/d &&
mount -t overlay overlay -o lowerdir=/var/lib/docker/a,upperdir=/var/lib/docker/b,workdir=/var/lib/docker/c \
    /var/lib/docker/d && unshare --net true && echo nested_docker
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeInput:
    places: StatePlaces
    hierarchies: Hierarchies
    ids: IdRange
    cgroup: str
    oci_runtime: str


def choose_binary(wanted: str) -> str:
    """The OCI runtime to use: as configured, or runc before crun (which refuses hybrid cgroup hosts).

    Raises Permanent ``tool_missing``."""
    for name in ("runc", "crun") if wanted == "auto" else (wanted,):
        if found := shutil.which(name):
            return found
    what = "No OCI runtime (runc or crun) is installed." if wanted == "auto" else f"{wanted} is not installed."
    raise Permanent("tool_missing", what, hint=f"Run: {_INSTALL}")


async def capabilities(given: ProbeInput) -> Capabilities:
    """Never raises for what a host lacks: then ``usable`` is False, with the reason and the command to fix it."""
    if os.geteuid() != 0:
        return _without_root()
    obstacle = await asyncio.to_thread(_obstacle, given)
    if obstacle is not None:
        return Capabilities(runtime="local", usable=False, reason=obstacle[0], fix=obstacle[1])
    binary = choose_binary(given.oci_runtime)
    _, version = await run([binary, "--version"], timeout_s=_TRIAL_TIMEOUT_S)
    try:
        with _trying(given) as lock:
            facts = await _trial(given, binary, docker=False)
            engine = await _trial(given, binary, docker=True)
            disk = await asyncio.to_thread(_disk_limit, given, lock)
    except (WarmpoolError, OSError) as error:
        reason = f"A trial container did not start: {error}"
        fix = f"Make `{binary} run` work on this host."
        if Path(binary).name == "crun" and given.hierarchies.version == 1:
            fix = f"{_INSTALL} (crun refuses hosts with cgroup v1)"
        return Capabilities(runtime="local", usable=False, reason=reason, fix=fix)
    return Capabilities(
        runtime="local",
        usable="user_namespace" in facts,
        reason="" if "user_namespace" in facts else "A trial container had no user namespace of its own.",
        version=version.splitlines()[0] if version else "",
        limits=(*_controller_limits(given.hierarchies), disk),
        isolation=tuple(_isolation(facts | engine)),
    )


def _without_root() -> Capabilities:
    """What only root of the host can hold, by name."""
    groups = "only root can make control groups that the sandbox cannot write"
    ids = "only root may give sandboxes a range of ids of their own"
    disk = "only root can mount a sized disk"
    limits = {"memory": groups, "cpu": groups, "pids": groups, "disk": disk}
    walls = {"user_namespace": ids, "limits_out_of_reach": groups, "cgroup_per_command": groups, "nested_docker": ids}
    return Capabilities(
        runtime="local",
        usable=False,
        reason="Without root this runtime holds neither the limits nor the walls named below, so it starts nothing.",
        fix='Run Warmpool as root: sudo "$(command -v warmpool)" up',
        limits=tuple(Held(name=name, held=False, how=how) for name, how in limits.items()),
        isolation=tuple(Held(name=name, held=False, how=how) for name, how in walls.items()),
    )


def _obstacle(given: ProbeInput) -> tuple[str, str] | None:
    """The first thing that rules this runtime out, and what would change it."""
    try:
        choose_binary(given.oci_runtime)
    except Permanent as error:
        return error.message, _INSTALL
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "unshare and nsenter are not installed.", "apt-get install -y util-linux"
    if platform.machine() not in MACHINES:
        return f"There is no seccomp profile for {platform.machine()}.", f"Use one of: {', '.join(MACHINES)}."
    if not given.hierarchies.roots:
        return "No cgroup hierarchy is mounted.", "mount -t cgroup2 none /sys/fs/cgroup"
    given.places.make()
    for folder in (given.places.root, *given.places.root.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return (
                f"The root of a sandbox is an ordinary user of the host and cannot pass {folder}.",
                f"chmod o+x {folder}, or set state_dir to another folder",
            )
    return None


def _controller_limits(found: Hierarchies) -> Iterator[Held]:
    there = cgroups.controllers(found)
    for name in ("memory", "cpu", "pids"):
        held = name in there
        how = f"cgroup v{found.version} {name} controller, on a directory above the sandbox's own"
        yield Held(
            name=name,
            held=held,
            how=how if held else "",
            fix="" if held else f"Boot with the cgroup controller {name} enabled.",
        )


def _isolation(facts: set[str]) -> Iterator[Held]:
    how = {
        "user_namespace": "root inside is an ordinary user outside",
        "network_none": "own network namespace with loopback only",
        "seccomp": "allow-list of system calls",
        "masked_paths": "OCI masked and read-only paths",
        "limits_out_of_reach": "root inside cannot write its limits (tried)",
        "cgroup_per_command": "delegated cgroup directory (tried)",
        "nested_docker": "overlay and cgroups for an engine within the user namespace (tried)",
    }
    for name, text in how.items():
        held = name in facts
        yield Held(name=name, held=held, how=text if held else "", fix="" if held else "Not held by a trial here.")


def _disk_limit(given: ProbeInput, lock: int) -> Held:
    place = SandboxPlace.at(given.places.root / f"probe-{os.getpid()}-disk")
    try:
        place.data.mkdir(parents=True)
        assembly.make_disk_image(place.disk_image, 16 * MIB, lock)
        kernel.mount_image(place.disk_image, place.data)
        return Held(name="disk", held=True, how="a sized ext4 image per sandbox (loop device)")
    except OSError as error:
        fix = f"modprobe loop, or see why a loop device cannot be mounted ({error.strerror})."
        if shutil.which("mkfs.ext4") is None:
            fix = "apt-get install -y e2fsprogs"
        return Held(name="disk", held=False, fix=fix)
    finally:
        with contextlib.suppress(OSError):
            kernel.unmount(place.data)
        shutil.rmtree(place.root, ignore_errors=True)


@contextlib.contextmanager
def _trying(given: ProbeInput) -> Iterator[int]:
    """Held while trials run; yields the lock's descriptor. Who finds that nobody else tries clears up what
    killed ones have left."""
    with (given.places.locks / "probe.lock").open("w") as lock:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear_trials(given)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield lock.fileno()


def _clear_trials(given: ProbeInput) -> None:
    place = Path(given.cgroup)
    above = given.hierarchies.directories(str(place.parent)).values()
    for group in {found.name for directory in above for found in directory.glob(f"{place.name}-*")}:
        with contextlib.suppress(OSError):
            cgroups.kill(given.hierarchies, f"{place.parent}/{group}")
            cgroups.remove(given.hierarchies, f"{place.parent}/{group}")
    for folder in given.places.root.glob("probe-*"):
        with contextlib.suppress(OSError):
            kernel.unmount(SandboxPlace.at(folder).data)
        shutil.rmtree(given.places.oci / folder.name, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


async def _trial(given: ProbeInput, binary: str, *, docker: bool) -> set[str]:
    name = f"probe-{os.getpid()}-{'engine' if docker else 'plain'}"
    place = SandboxPlace.at(given.places.root / name)
    cgroup = f"{given.cgroup}-{os.getpid()}-{docker:d}"
    try:
        await asyncio.to_thread(_prepare_trial, given, place, cgroup, docker)
        argv = [binary, "--root", str(given.places.oci), "run", "--bundle", str(place.bundle), name]
        code, output = await run(argv, timeout_s=_TRIAL_TIMEOUT_S)
        if code != 0:
            raise Permanent("trial_failed", output.strip()[-500:])
        return set(output.split())
    finally:
        await asyncio.to_thread(_end_trial, given, place, cgroup, name)


def _prepare_trial(given: ProbeInput, place: SandboxPlace, cgroup: str, docker: bool) -> None:
    for folder in (place.bundle, place.rootfs, place.engine):
        folder.mkdir(parents=True)
        os.chown(folder, given.ids.start, given.ids.start)
    binds = [(Path("/usr"), "/usr", True)]
    for entry in ("bin", "sbin", "lib", "lib64"):
        on_host = Path("/") / entry
        if on_host.is_symlink():
            (place.rootfs / entry).symlink_to(on_host.readlink())
        elif on_host.is_dir():
            binds.append((on_host, f"/{entry}", True))
    binds += [(place.engine, "/var/lib/docker", False)] if docker else []
    cgroups.create(given.hierarchies, cgroup, _TRIAL_LIMITS, given.ids.start)
    inside = cgroups.inside(given.hierarchies)
    directories = given.hierarchies.directories(f"{cgroup}/{cgroups.DELEGATED}")
    script = _ENGINE_TRIAL if docker else _TRIAL.replace("ROOTS", " ".join(inside.values()))
    body = bundle.config(
        bundle.BundleInput(
            hostname="probe",
            rootfs=place.rootfs,
            ids=given.ids,
            machine=platform.machine(),
            cgroup=f"{cgroup}/{cgroups.DELEGATED}",
            cgroup_version=given.hierarchies.version,
            cgroup_mounts={str(directories[name]): path for name, path in inside.items()},
            binds=tuple(binds),
            argv=("/bin/sh", "-c", script),
            docker=docker,
        )
    )
    (place.bundle / "config.json").write_text(json.dumps(body), encoding="utf-8")


def _end_trial(given: ProbeInput, place: SandboxPlace, cgroup: str, name: str) -> None:
    with contextlib.suppress(OSError):
        cgroups.kill(given.hierarchies, cgroup)
        cgroups.remove(given.hierarchies, cgroup)
    shutil.rmtree(given.places.oci / name, ignore_errors=True)
    shutil.rmtree(place.root, ignore_errors=True)
