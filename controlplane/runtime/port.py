"""The runtime port. Every adapter passes tests/runtime/contract.py.

All calls are idempotent per sandbox id or image, safe to repeat after a crash between any two of their
steps, and touch only what carries this deployment's label. Errors: ``Retryable`` for what may pass
(engine busy, disk full), ``Permanent`` for what will not, with the code and hint a user needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from controlplane.ids import SandboxId
from controlplane.model.resources import Resources

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Whether a runtime can hold one limit or wall here, how, or why not and what would fix it."""

    name: str
    held: bool
    how: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """``limits`` names: memory, cpu, pids, disk. ``isolation`` names: user_namespace, network_none, seccomp,
    masked_paths, limits_out_of_reach, nested_docker, cgroup_per_command. ``usable`` False: ``reason`` and
    ``fix`` say why and how to change it."""

    runtime: str
    usable: bool
    reason: str = ""
    fix: str = ""
    version: str = ""
    limits: tuple[Held, ...] = ()
    isolation: tuple[Held, ...] = ()

    def holds(self, name: str) -> bool:
        return any(h.held for h in (*self.limits, *self.isolation) if h.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """All a runtime needs to make one sandbox. ``image`` comes from ``ensure_base`` or ``commit``.

    ``labels`` are immutable and found again by ``list_sandboxes`` (deployment, pool, pool_uid, version, purpose, …).
    ``door_key_hex``: key of the door in, reaches sandboxd by a file only root of the sandbox can read.
    ``egress``: whether the door out is mounted. ``platform_env`` / ``template_env``: see DESIGN's order.
    """

    id: SandboxId
    image: str
    resources: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    door_key_hex: str = ""
    docker: bool = False
    egress: bool = False
    trusted: bool = False
    platform_env: Mapping[str, str] = field(default_factory=dict)
    template_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSandbox:
    """What the runtime itself knows. ``door`` None: not up yet or no longer. ``egress_socket``: where the
    gateway must listen for this sandbox, None without a door out. ``created_at``: epoch seconds."""

    id: SandboxId
    state: Literal["partial", "running", "stopped"]
    labels: Mapping[str, str]
    door: str | None = None
    egress_socket: str | None = None
    created_at: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A sealed file system. ``parent``: what it was built on, None for a base."""

    ref: str
    parent: str | None = None
    created_at: float = 0.0
    size_bytes: int = 0


class Runtime(Protocol):
    name: str

    async def capabilities(self) -> Capabilities: ...

    async def ensure_base(self, base: str, progress: Progress) -> Image:
        """The image of a named base (``debian12``), made if missing (minutes the first time).

        Permanent ``unknown_base`` for a name that is not there."""
        ...

    async def base_digest(self, base: str) -> str:
        """Digest of the base's content, without building it where its lock file tells."""
        ...

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        """Make and start the sandbox; returns once sandboxd has been started (not: is ready).

        A sandbox of this id that runs already is returned as it is; a partial one is finished or remade.
        Permanent ``limit_not_held`` when the spec asks for what can't be held and is not trusted."""
        ...

    async def inspect(self, sandbox: SandboxId) -> RunningSandbox | None: ...

    async def list_sandboxes(self) -> list[RunningSandbox]:
        """Every sandbox of this deployment, partial ones included."""
        ...

    async def destroy(self, sandbox: SandboxId) -> None:
        """End all its processes and remove every trace. Missing: success."""
        ...

    async def commit(self, sandbox: SandboxId, ref_hint: str) -> Image:
        """Stop the sandbox and seal its file system as an image named after ``ref_hint`` (a version id).

        Idempotent: an image that already exists under that name is returned. The sandbox is left stopped,
        to be destroyed."""
        ...

    async def list_images(self) -> list[Image]: ...

    async def delete_image(self, ref: str) -> None:
        """Conflict ``image_in_use`` while a sandbox or a child image needs it. Missing: success."""
        ...

    async def close(self) -> None: ...


class BuiltBase(Protocol):
    """A base's content: SHA-256 in hex and the tar itself."""

    @property
    def digest(self) -> str: ...

    @property
    def rootfs_tar(self) -> Path: ...


class BaseSource(Protocol):
    """Where runtimes on this host get bases from; bootstrap hands in the builder of controlplane.bases."""

    async def ensure(self, base: str, progress: Progress) -> BuiltBase:
        """The base, built if missing."""
        ...

    async def recipe(self, base: str) -> str:
        """Digest of what the base is built from, without building it."""
        ...
