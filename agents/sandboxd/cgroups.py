"""One control group per command below the directories that the host delegated: placing, usage, killing.

The limits of the sandbox stand above these directories, out of reach. What a host cannot delegate is
named in ``CommandGroup.kind`` and shown in each command's status, never silently assumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from agents.sandboxd.config import Cgroups
from agents.sandboxd.problems import ProblemError
from agents.wire import ExecLimits

_V2_CONTROLLERS = ("memory", "pids", "cpu")
_CPU_PERIOD_US = 100_000
log = logging.getLogger("sandboxd.cgroups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the groups tell; None where they do not."""

    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    oom_kills: int = 0


class CommandGroup:
    """The directories of one command, by controller (``v2`` and ``unified`` name whole hierarchies)."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._directories = directories

    @property
    def kind(self) -> str:
        """``v2``, ``v1`` (with ``+unified`` where the tree can be killed at once), or ``unavailable``."""
        if "v2" in self._directories:
            return "v2"
        if not self._directories:
            return "unavailable"
        return "v1+unified" if "unified" in self._directories else "v1"

    def entrances(self) -> list[str]:
        """Files into which a new process writes ``0`` to move itself in.

        On version 1 that is ``tasks``: moving one's own only thread needs no lock, while cgroup.procs
        can wait tens of milliseconds for one.
        """
        whole = ("v2", "unified")
        return [
            str(folder / ("cgroup.procs" if name in whole else "tasks")) for name, folder in self._directories.items()
        ]

    def pids(self) -> list[int]:
        """Processes inside, in no order; none if the group is gone. Ids of other namespaces are left out."""
        for folder in self._directories.values():
            with contextlib.suppress(OSError):
                return [pid for pid in map(int, (folder / "cgroup.procs").read_text().split()) if pid > 0]
        return []

    def signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def end(self, grace_s: float) -> bool:
        """TERM to all, then after ``grace_s`` the end of all. True if the group is empty."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if await self._emptied(grace_s):
            return True
        return await self.kill()

    async def kill(self, within_s: float = 10.0) -> bool:
        """End every process, whatever it does meanwhile. False if some are left (uninterruptible)."""
        deadline = time.monotonic() + within_s
        while True:
            self._kill_once()
            if await self._emptied(0.25):
                return True
            if time.monotonic() > deadline:
                return False

    def usage(self) -> Usage:
        found = self._directories
        if "v2" in found:
            return Usage(
                cpu_s=_cpu_stat(found["v2"]),
                peak_memory_bytes=_number(found["v2"] / "memory.peak"),
                oom_kills=_field(found["v2"] / "memory.events", "oom_kill"),
            )
        cpu = None
        if "unified" in found:
            cpu = _cpu_stat(found["unified"])
        elif "cpuacct" in found and (nanoseconds := _number(found["cpuacct"] / "cpuacct.usage")) is not None:
            cpu = nanoseconds / 1e9
        if "memory" not in found:
            return Usage(cpu_s=cpu)
        return Usage(
            cpu_s=cpu,
            peak_memory_bytes=_number(found["memory"] / "memory.max_usage_in_bytes"),
            oom_kills=_field(found["memory"] / "memory.oom_control", "oom_kill"),
        )

    def limit(self, limits: ExecLimits) -> None:
        """Raises ProblemError ``limit_unavailable`` where no controller was delegated for a limit asked for."""
        if limits.memory_bytes is not None:
            self._write("memory", "memory.max", "memory.limit_in_bytes", str(limits.memory_bytes))
        if limits.pids is not None:
            self._write("pids", "pids.max", "pids.max", str(limits.pids))
        if limits.cpu_cores is not None:
            quota = max(1000, int(limits.cpu_cores * _CPU_PERIOD_US))
            self._write(
                "cpu",
                "cpu.max",
                "cpu.cfs_quota_us",
                f"{quota} {_CPU_PERIOD_US}" if "v2" in self._directories else str(quota),
            )

    def remove(self) -> bool:
        """True once every directory is gone; False while processes hold one."""
        for name, folder in list(self._directories.items()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return False
            del self._directories[name]
        return True

    async def _emptied(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        pause_s = 0.001
        while self.pids():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)
        return True

    def _kill_once(self) -> None:
        for name in ("v2", "unified"):
            if name in self._directories:
                with contextlib.suppress(OSError):
                    (self._directories[name] / "cgroup.kill").write_text("1")
                    return
        # What is frozen, or may have no more children, cannot outrun a pass over the list.
        freezer = self._directories.get("freezer")
        if freezer is not None:
            _set(freezer / "freezer.state", "FROZEN")
        elif "pids" in self._directories:
            _set(self._directories["pids"] / "pids.max", "0")
        for _ in range(8):
            self.signal(signal.SIGKILL)
            if freezer is None or "FROZEN" in _text(freezer / "freezer.state"):
                break
        self.signal(signal.SIGKILL)
        if freezer is not None:
            _set(freezer / "freezer.state", "THAWED")

    def _write(self, controller: str, v2_file: str, v1_file: str, value: str) -> None:
        if "v2" in self._directories:
            file = self._directories["v2"] / v2_file
        elif controller in self._directories:
            file = self._directories[controller] / v1_file
        else:
            raise ProblemError(409, "limit_unavailable", f"This sandbox cannot limit {controller} per command.")
        try:
            file.write_text(value)
        except OSError as error:
            raise ProblemError(
                409,
                "limit_unavailable",
                f"The {controller} limit {value} was refused: {error.strerror}.",
                "A command's limit cannot be above the sandbox's own.",
            ) from error


class Delegation:
    """The roots given by the configuration, those of them that work. ``create`` makes a command's group."""

    def __init__(self, roots: dict[str, Path]) -> None:
        self._roots = roots
        self._serial = itertools.count(1)

    @classmethod
    def prepare(cls, config: Cgroups | None) -> Delegation:
        """Check each root by making a group in it; on version 2 also move the daemon out of the root,
        since controllers cannot be enabled above a populated group."""
        roots = {name: Path(root) for name, root in (config.roots if config else {}).items()}
        working = {name: root for name, root in roots.items() if _works(name, root)}
        if "v2" in working:
            _enable_v2(working["v2"])
        return cls(working)

    def create(self, limits: ExecLimits | None) -> CommandGroup:
        """A new, empty group. Raises ProblemError ``limit_unavailable``; OSError if a root is full or gone."""
        name_of_all = f"cmd-{os.getpid()}-{next(self._serial)}"  # callers are threads: taken once, at once
        group = CommandGroup({})
        try:
            for name, root in self._roots.items():
                folder = root / name_of_all
                folder.mkdir()
                group._directories[name] = folder
            if limits is not None:
                group.limit(limits)
        except BaseException:
            group.remove()
            raise
        return group


def _works(name: str, root: Path) -> bool:
    probe = root / f"cmd-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        log.warning("cgroup root %s (%s) cannot be used: %s", root, name, error)
        return False
    return True


def _enable_v2(root: Path) -> None:
    leaf = root / "daemon"
    leaf.mkdir(exist_ok=True)
    for pid in _text(root / "cgroup.procs").split():
        if not _set(leaf / "cgroup.procs", pid):
            log.warning("process %s cannot be moved out of %s", pid, root)
    offered = _text(root / "cgroup.controllers").split()
    for controller in _V2_CONTROLLERS:
        if controller in offered and not _set(root / "cgroup.subtree_control", f"+{controller}"):
            log.warning("controller %s cannot be enabled below %s", controller, root)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _set(file: Path, value: str) -> bool:
    try:
        file.write_text(value)
    except OSError:
        return False
    return True


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _field(file: Path, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", _text(file), re.MULTILINE)
    return int(found[1]) if found else 0


def _cpu_stat(folder: Path) -> float | None:
    found = re.search(r"^usage_usec (\d+)$", _text(folder / "cpu.stat"), re.MULTILINE)
    return int(found[1]) / 1e6 if found else None
