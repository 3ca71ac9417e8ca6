"""The control groups of a sandbox, version 1 (and hybrid) and version 2.

Per hierarchy ``PARENT/ID`` carries the limits and stays the host's; ``PARENT/ID/cmds`` below it is where
the sandbox's processes live and is delegated: its directory and the files that move processes belong to
the mapped root, its limit files do not. Only ``cmds`` is visible inside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from controlplane.model.resources import Resources

DELEGATED = "cmds"
_CPU_PERIOD_US = 100_000
_ATTEMPTS = 10
# Groups are kernel memory of the host; a sandbox makes one a command, an engine inside one a container.
_MOST_GROUPS = 4096
_MOVING_FILES = ("cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control")
# Each costs time at every start of a command, so commands get only what limits, counts and ends them.
_COMMANDS = ("v2", "memory", "pids", "cpu", "unified")
_COMMANDS_WITHOUT_UNIFIED = ("cpuacct", "freezer")
_V2_WANTED = ("cpu", "memory", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """The mounted hierarchies of this host. ``version`` 2: the one key of ``roots`` is ``v2``. Version 1:
    a key per controller, ``systemd`` for the named one and ``unified`` for version 2 beside them."""

    version: int
    roots: dict[str, Path]

    def directories(self, path: str) -> dict[str, Path]:
        return {name: root / path for name, root in self.roots.items()}


def find(mountinfo: str) -> Hierarchies:
    """From the text of ``/proc/self/mountinfo``; no ``roots`` where no hierarchy is mounted."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" and v2 is None:
            v2 = point
        elif kind == "cgroup":
            names = [part for part in options.split(",") if part not in ("rw", "ro")]
            # Joined controllers (cpu,cpuacct) are one hierarchy, known by its directory's name.
            v1.setdefault(point.name if point.name in names or "," in point.name else names[-1], point)
    named = {name.removeprefix("name="): root for name, root in v1.items()}
    if named:
        return Hierarchies(version=1, roots={**named, **({"unified": v2} if v2 else {})})
    return Hierarchies(version=2, roots={"v2": v2} if v2 else {})


def controllers(found: Hierarchies) -> set[str]:
    """Names of the controllers that can hold a limit here."""
    if found.version == 2:
        return set((root / "cgroup.controllers").read_text().split()) if (root := found.roots.get("v2")) else set()
    return {part for name in found.roots for part in name.split(",")}


def create(found: Hierarchies, path: str, resources: Resources, owner: int) -> None:
    """Make ``path`` with its limits and the delegated directory below, in every hierarchy.

    ``owner``: host uid and gid of the mapped root. Raises OSError, also when a limit cannot be set.
    Repeating it is harmless.
    """
    for attempt in range(_ATTEMPTS):
        try:
            _create(found, path, resources, owner)
            return
        except FileNotFoundError:
            # The removal of the parent's last other sandbox may have taken the parent along in between.
            if attempt == _ATTEMPTS - 1:
                raise


def kill(found: Hierarchies, path: str) -> None:
    """End every process below ``path`` and return once none is left. Raises OSError EBUSY after 10 s."""
    deadline = time.monotonic() + 10
    pause_s = 0.0005
    directories = list(found.directories(path).values())
    while True:
        pids = {pid for directory in directories for pid in _pids_below(directory)}
        if not pids:
            return
        for directory in directories:
            with contextlib.suppress(OSError):
                (directory / "cgroup.kill").write_text("1")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise OSError(errno.EBUSY, f"processes {sorted(pids)[:5]} do not end", path)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)


def flooding(found: Hierarchies, path: str, many: int) -> int | None:
    """How many groups are below ``path``, if it has more than it may while the whole host has more than ``many``.

    The kernel has 65,535 ids for memory groups, and no limit in version 1 on how many a sandbox makes. Once they
    are used up nothing starts any more, so who makes them without end must go."""
    memory = found.roots.get("memory")
    if memory is None or _memory_groups() <= many:
        return None
    number = sum(len(below) for _, below, _ in os.walk(memory / path))
    return number if number > _MOST_GROUPS else None


def remove(found: Hierarchies, path: str) -> None:
    """Remove ``path`` and all below it from every hierarchy, and its parents where that leaves them empty;
    missing is success. Raises OSError EBUSY."""
    deadline = time.monotonic() + 5
    for directory in found.directories(path).values():
        while not _remove_tree(directory):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "the control group is still in use", str(directory))
            time.sleep(0.002)
    for parent in list(Path(path).parents)[:-1]:
        for root in found.roots.values():
            with contextlib.suppress(OSError):
                (root / parent).rmdir()


def inside(found: Hierarchies) -> dict[str, str]:
    """Hierarchy → where its delegated directory is mounted in a sandbox."""
    if found.version == 2:
        return {"v2": "/sys/fs/cgroup"}
    return {name: f"/sys/fs/cgroup/{root.name}" for name, root in found.roots.items()}


def for_commands(names: Collection[str]) -> list[str]:
    """Those of the hierarchies ``names`` that the daemon places each command in."""
    wanted = _COMMANDS if "unified" in names else (*_COMMANDS, *_COMMANDS_WITHOUT_UNIFIED)
    return [name for name in wanted if name in names]


def _create(found: Hierarchies, path: str, resources: Resources, owner: int) -> None:
    if found.version == 2:
        _enable_v2(found.roots["v2"], path)
    for name, directory in found.directories(path).items():
        delegated = directory / DELEGATED
        delegated.mkdir(parents=True, exist_ok=True)
        if name == "cpuset":
            _fill_cpuset(found.roots[name], delegated)
        for file, value in _limits(name, resources):
            _write_limit(directory / file, value)
        os.chown(delegated, owner, owner)
        for file in _MOVING_FILES:
            with contextlib.suppress(FileNotFoundError):
                os.chown(delegated / file, owner, owner)


def _limits(name: str, resources: Resources) -> Iterator[tuple[str, str]]:
    """(file, value) pairs of one hierarchy, in the order that the kernel wants them written."""
    if name in ("v2", "unified"):
        yield "cgroup.max.descendants", str(_MOST_GROUPS)
    memory = str(resources.memory_bytes)
    quota = max(1000, int(resources.cpu_cores * _CPU_PERIOD_US))
    controllers = name.split(",")
    if name == "v2":
        yield "memory.max", memory
        yield "memory.swap.max", "0"
        yield "pids.max", str(resources.pids)
        yield "cpu.max", f"{quota} {_CPU_PERIOD_US}"
    if "memory" in controllers:
        yield "memory.limit_in_bytes", memory
        yield "memory.memsw.limit_in_bytes", memory
    if "pids" in controllers:
        yield "pids.max", str(resources.pids)
    if "cpu" in controllers:
        yield "cpu.cfs_period_us", str(_CPU_PERIOD_US)
        yield "cpu.cfs_quota_us", str(quota)


def _write_limit(file: Path, value: str) -> None:
    # Without swap accounting these files are not there, and there is nothing to limit.
    if "sw" in file.name and not file.exists():
        return
    file.write_text(value)


def _enable_v2(root: Path, path: str) -> None:
    directory = root
    for part in (*Path(path).parts, None):
        offered = (directory / "cgroup.controllers").read_text().split()
        enabled = (directory / "cgroup.subtree_control").read_text().split()
        missing = [f"+{name}" for name in _V2_WANTED if name in offered and name not in enabled]
        if missing:
            (directory / "cgroup.subtree_control").write_text(" ".join(missing))
        if part is not None:
            directory = directory / part
            directory.mkdir(exist_ok=True)


def _fill_cpuset(root: Path, leaf: Path) -> None:
    """A new cpuset is empty and takes no process; each level takes over what its parent has."""
    levels = [leaf, *leaf.parents]
    for directory in reversed(levels[: levels.index(root)]):
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not (directory / file).read_text().strip():
                (directory / file).write_text((directory.parent / file).read_text())


def _memory_groups() -> int:
    for line in Path("/proc/cgroups").read_text().splitlines():
        name, _, number, *_ = line.split()
        if name == "memory":
            return int(number)
    return 0


def _pids_below(directory: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(directory):
        with contextlib.suppress(OSError):
            for word in (Path(folder) / "cgroup.procs").read_text().split():
                yield int(word)


def _remove_tree(directory: Path) -> bool:
    for folder, _, _ in os.walk(directory, topdown=False):
        try:
            Path(folder).rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
    return True
