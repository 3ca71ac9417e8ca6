"""What this engine on this host can hold, found out by asking both; and whether it can be used at all."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import Permanent, WarmpoolError
from controlplane.runtime import cgroups
from controlplane.runtime.cgroups import Hierarchies
from controlplane.runtime.docker.engine import Engine, EngineFacts
from controlplane.runtime.port import Capabilities, Held, SandboxSpec

_INSTALL = "apt-get install -y docker.io"
_USUAL_ADDRESS = "unix:///var/run/docker.sock"
_NEEDED = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """``hierarchies``: where the host makes each sandbox's control groups and delegates them; None where the
    engine's own limits have to do."""

    facts: EngineFacts
    mapped_root: int
    hierarchies: Hierarchies | None


def ground(engine: Engine, base_url: str | None) -> Ground:
    """Raises Permanent ``runtime_unusable`` with the reason, or the engine's own errors."""
    problem = _host_problem(base_url)
    facts = engine.facts() if not problem else None
    problem = problem or (_engine_problem(facts) if facts else None)
    if problem or facts is None:
        reason, fix = problem or ("", "")
        raise Permanent("runtime_unusable", f"The docker runtime cannot be used here: {reason}.", hint=fix)
    found = hierarchies()
    return Ground(
        facts=facts,
        mapped_root=facts.mapped_root,
        hierarchies=None if _delegation_problem(facts, found) else found,
    )


def check_limits(spec: SandboxSpec, here: Ground) -> None:
    """Raises Permanent ``limit_not_held`` for what the spec asks and only a trusted template may go without."""
    if spec.trusted:
        return
    wanted = {
        "memory": True,
        "cpu": True,
        "pids": True,
        "disk": spec.resources.disk_bytes is not None,
        "user_namespace": spec.docker,
        "nested_docker": spec.docker,
    }
    for held in (*_limits(here), *_isolation(here)):
        if wanted.get(held.name) and not held.held:
            raise Permanent(
                "limit_not_held",
                f"The docker runtime cannot hold {held.name} here: {held.how}.",
                hint=f"{held.fix} Or let an operator mark the template trusted.".strip(),
            )


def capabilities(engine: Engine, base_url: str | None) -> Capabilities:
    try:
        here = ground(engine, base_url)
    except WarmpoolError as error:
        reason, fix = error.message, error.hint
        if error.code == "engine_unreachable":
            reason, fix = unreachable(_address(base_url), os.environ.get("PATH", ""))
        return Capabilities(runtime="docker", usable=False, reason=reason, fix=fix)
    return Capabilities(
        runtime="docker",
        usable=True,
        version=here.facts.version,
        limits=_limits(here),
        isolation=_isolation(here),
    )


def hierarchies() -> Hierarchies:
    return cgroups.find(Path("/proc/self/mountinfo").read_text())


def unreachable(address: str, programs: str) -> tuple[str, str]:
    """Why no engine answers at ``address``, and the command that changes it. ``programs``: a PATH."""
    reason = f"No Docker Engine answers at {address}."
    if address != _USUAL_ADDRESS:
        return reason, "Start the engine of that socket, or unset DOCKER_HOST and runtime.docker_host for the usual one"
    start = "systemctl start docker" if Path("/run/systemd/system").is_dir() else "service docker start"
    if shutil.which("dockerd", path=programs) is None:
        return f"{reason} None is installed.", f"{_INSTALL} && {start}"
    return f"{reason} It is installed, but does not run.", start


def _address(base_url: str | None) -> str:
    return base_url or os.environ.get("DOCKER_HOST") or _USUAL_ADDRESS


def _host_problem(base_url: str | None) -> tuple[str, str] | None:
    url = _address(base_url)
    if not url.startswith(("unix://", "http+unix://")):
        return (
            f"{url} is not a Unix socket, so the engine may run on another host",
            "Use the socket of an engine on this host.",
        )
    if os.geteuid() != 0:
        return (
            "the files of a sandbox must belong to its root, and its limits stand above the container; only root of "
            "the host can arrange either",
            'Run Warmpool as root: sudo "$(command -v warmpool)" up',
        )
    return None


def _engine_problem(facts: EngineFacts) -> tuple[str, str] | None:
    if facts.rootless:
        return ("the engine is rootless", "Use an engine of root's with userns-remap, or the local runtime.")
    memory = _host_memory_bytes()
    if facts.kernel != os.uname().release or (memory and facts.memory_bytes != memory):
        return (
            f"the engine runs on another host (kernel {facts.kernel}, {facts.memory_bytes} bytes of memory)",
            "Use the socket of an engine on this host.",
        )
    return None


def _host_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _delegation_problem(facts: EngineFacts, found: Hierarchies) -> str:
    if facts.cgroup_version != 1 or found.version != 1:
        return "with cgroup v2 the engine gives a container a read-only view of its own group"
    if facts.cgroup_driver != "cgroupfs":
        return f"the engine's cgroup driver is {facts.cgroup_driver}"
    missing = [name for name in _NEEDED if name not in found.roots]
    if missing:
        return f"no hierarchy for {', '.join(missing)} is mounted under its own name"
    denied = [name for name in _NEEDED if not os.access(found.roots[name], os.W_OK)]
    return f"the {', '.join(denied)} hierarchy is not writable" if denied else ""


def _limits(here: Ground) -> tuple[Held, ...]:
    facts = here.facts
    where = "the host's cgroup above the container" if here.hierarchies else "the engine's limit on the container"

    def limit(name: str, supported: bool) -> Held:
        if here.hierarchies or supported:
            return Held(name=name, held=True, how=where)
        return Held(
            name=name,
            held=False,
            how=f"the engine says that this kernel has no {name} limit",
            fix=f"Enable the {name} cgroup controller.",
        )

    return (
        limit("memory", facts.memory_limit),
        limit("cpu", facts.cpu_quota),
        limit("pids", facts.pids_limit),
        Held(
            name="disk",
            held=False,
            how="the engine's overlay storage takes no size for a container here",
            fix="Use the local runtime, which has sized disks.",
        ),
    )


def _isolation(here: Ground) -> tuple[Held, ...]:
    facts = here.facts
    userns = facts.user_namespace
    no_delegation = _delegation_problem(facts, hierarchies())
    nested = userns and not no_delegation
    return (
        Held(
            name="user_namespace",
            held=userns,
            how=f"root inside is uid {facts.mapped_root} outside" if userns else "root inside is root of the host",
            fix="" if userns else 'Set "userns-remap": "default" in /etc/docker/daemon.json and restart the engine.',
        ),
        Held(name="network_none", held=True, how="loopback only; the doors are Unix sockets"),
        Held(
            name="seccomp",
            held=facts.seccomp,
            how="an allow-list of system calls" if facts.seccomp else "the engine has no seccomp",
            fix="" if facts.seccomp else "Use an engine built with seccomp.",
        ),
        Held(name="masked_paths", held=True, how="the engine's default; not for templates with docker: true"),
        Held(name="limits_out_of_reach", held=True, how=_reach(here)),
        Held(
            name="nested_docker",
            held=nested,
            how="in the user namespace, with delegated control groups"
            if nested
            else no_delegation or "without a user namespace it would be root of the host",
            fix="" if nested else "Use the local runtime, or an engine with userns-remap and the cgroupfs driver.",
        ),
        Held(
            name="cgroup_per_command",
            held=not no_delegation,
            how=no_delegation or "a delegated directory below the sandbox's limits",
            fix="Use the local runtime." if no_delegation else "",
        ),
    )


def _reach(here: Ground) -> str:
    if here.hierarchies:
        return "the limit files are not visible inside"
    return "the engine mounts control groups read-only, and mounting needs a capability that is dropped"
