"""The runtime port over records: same rules, same errors, no machine."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from pathlib import Path

from controlplane.errors import Conflict, NotFound, Permanent
from controlplane.ids import SandboxId
from controlplane.runtime.port import Capabilities, Held, Image, Progress, RunningSandbox, SandboxSpec
from controlplane.runtime.simulated.agent import SimulatedAgent
from controlplane.runtime.simulated.faults import FaultPoint, Faults
from controlplane.runtime.simulated.latency import LogNormal
from controlplane.runtime.simulated.world import ImageRecord, SandboxRecord, Up, World

# Of a start, this share passes in create (the engine's part), the rest until sandboxd is ready.
_CREATE_SHARE = 0.2
_BASES = ("debian12",)
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class SimulatedRuntime:
    """``state_dir`` None keeps the world in this process; a folder shares it between processes.

    ``start_s``: median seconds from create to ready. ``destroy_s``, ``commit_s``: medians of those calls.
    ``faults`` are drawn by call name: create, inspect, list_sandboxes, destroy, commit, delete_image.
    """

    name = "simulated"

    def __init__(
        self,
        state_dir: Path | None = None,
        start_s: float = 0.5,
        *,
        destroy_s: float = 0.0,
        commit_s: float = 0.0,
        sigma: float = 0.25,
        seed: int = 0,
        deployment: str = "default",
        faults: Faults | None = None,
        world: World | None = None,
    ) -> None:
        self.world = world or World(state_dir)
        self._deployment = deployment
        self._faults = faults
        self._start = LogNormal(start_s, sigma=sigma, seed=seed)
        self._destroy = LogNormal(destroy_s, sigma=sigma, seed=seed + 1)
        self._commit = LogNormal(commit_s, sigma=sigma, seed=seed + 2)

    def agent(self, bind_s: float = 0.0, *, sigma: float = 0.25, seed: int = 0) -> SimulatedAgent:
        """The agent client of this runtime's sandboxes; ``bind_s``: median seconds of a bind."""
        return SimulatedAgent(self.world, bind_latency=LogNormal(bind_s, sigma=sigma, seed=seed))

    async def capabilities(self) -> Capabilities:
        """Nothing runs, so nothing is held: said so for each name, and every template is accepted."""
        absent = "simulated sandboxes run nothing"
        limits = ("memory", "cpu", "pids", "disk")
        isolation = (
            "user_namespace",
            "network_none",
            "seccomp",
            "masked_paths",
            "limits_out_of_reach",
            "nested_docker",
            "cgroup_per_command",
        )
        return Capabilities(
            runtime=self.name,
            usable=True,
            version="1",
            limits=tuple(Held(name=name, held=False, how=absent) for name in limits),
            isolation=tuple(Held(name=name, held=False, how=absent) for name in isolation),
        )

    async def ensure_base(self, base: str, progress: Progress) -> Image:
        digest = await self.base_digest(base)
        ref = f"{self._deployment}.base-{base}-{digest[:12]}"
        progress(f"base {base} is simulated")
        record = ImageRecord(ref=ref, deployment=self._deployment, parent=None, created_at=time.time(), size_bytes=0)
        return _image(self.world.add_image(record))

    async def base_digest(self, base: str) -> str:
        if base not in _BASES:
            raise Permanent("unknown_base", f"There is no base {base[:80]!r}.", hint=f"Known: {', '.join(_BASES)}.")
        return hashlib.sha256(f"simulated:{base}".encode()).hexdigest()

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        with FaultPoint(self._faults, "create"):
            self._own(spec.id)
            image = self.world.image(spec.image)
            if image is None or image.deployment != self._deployment:
                raise NotFound("image_not_found", f"There is no image {spec.image!r} on this runtime.")
            mine = SandboxRecord(
                id=spec.id,
                deployment=self._deployment,
                image=spec.image,
                labels={**spec.labels, "deployment": self._deployment},
                egress=spec.egress,
                created_at=time.time(),
                nonce=secrets.token_hex(8),
            )
            standing = self.world.add_sandbox(mine)
            if standing.deployment != self._deployment:
                raise Conflict("sandbox_exists", f"Sandbox {spec.id} belongs to another deployment.")
            if self.world.up(spec.id) is None:
                await self._bring_up(standing)
            return self._running(standing, up=True, stopped=self.world.stopped(spec.id))

    async def _bring_up(self, record: SandboxRecord) -> None:
        duration = self._start.sample()
        if duration > 0:
            await asyncio.sleep(duration * _CREATE_SHARE)
        if self.world.up(record.id) is None:
            self.world.copy_files(record.image, record.id)
        now = time.time()
        self.world.bring_up(record.id, Up(now, now + duration * (1 - _CREATE_SHARE)))
        if self.world.sandbox(record.id) is None:
            self.world.remove_sandbox(record.id)
            raise Conflict("sandbox_destroyed", f"Sandbox {record.id} was destroyed while it was being made.")

    async def inspect(self, sandbox: SandboxId) -> RunningSandbox | None:
        with FaultPoint(self._faults, "inspect"):
            record = self._own(sandbox)
            if record is None:
                return None
            up = self.world.up(sandbox) is not None
            return self._running(record, up=up, stopped=self.world.stopped(sandbox))

    async def list_sandboxes(self) -> list[RunningSandbox]:
        with FaultPoint(self._faults, "list_sandboxes"):
            return [
                self._running(record, up=up, stopped=stopped)
                for record, up, stopped in self.world.sandboxes()
                if record.deployment == self._deployment
            ]

    async def destroy(self, sandbox: SandboxId) -> None:
        with FaultPoint(self._faults, "destroy"):
            await self._destroy.pass_by()
            if self._own(sandbox) is not None:
                self.world.remove_sandbox(sandbox)

    async def commit(self, sandbox: SandboxId, ref_hint: str) -> Image:
        with FaultPoint(self._faults, "commit"):
            ref = f"{self._deployment}.{ref_hint}"
            if (existing := self.world.image(ref)) is not None:
                return _image(existing)
            record = self._own(sandbox)
            if record is None:
                raise NotFound("sandbox_not_found", f"There is no sandbox {sandbox} to commit.")
            self.world.stop(sandbox)
            await self._commit.pass_by()
            size = self.world.copy_files(sandbox, ref)
            image = ImageRecord(
                ref=ref,
                deployment=self._deployment,
                parent=record.image,
                created_at=time.time(),
                size_bytes=size,
            )
            return _image(self.world.add_image(image))

    async def list_images(self) -> list[Image]:
        return [_image(image) for image in self.world.images() if image.deployment == self._deployment]

    async def delete_image(self, ref: str) -> None:
        with FaultPoint(self._faults, "delete_image"):
            image = self.world.image(ref)
            if image is None or image.deployment != self._deployment:
                return
            users = [record.id for record, _, _ in self.world.sandboxes() if record.image == ref]
            users += [child.ref for child in self.world.images() if child.parent == ref]
            if users:
                raise Conflict("image_in_use", f"Image {ref} is needed by {', '.join(sorted(users)[:5])}.")
            self.world.remove_image(ref)

    async def close(self) -> None:
        """Nothing is held open."""

    def kill(self, sandbox: SandboxId) -> None:
        """Let a sandbox die by itself, for tests: it stays listed as stopped and its door is silent."""
        self.world.stop(sandbox)

    def _own(self, sandbox: str) -> SandboxRecord | None:
        if not _ID.fullmatch(sandbox):
            raise Permanent("invalid_sandbox_id", f"{sandbox[:80]!r} is no sandbox id.")
        record = self.world.sandbox(sandbox)
        return record if record is not None and record.deployment == self._deployment else None

    def _running(self, record: SandboxRecord, *, up: bool, stopped: bool) -> RunningSandbox:
        return RunningSandbox(
            id=SandboxId(record.id),
            state="stopped" if stopped else "running" if up else "partial",
            labels=dict(record.labels),
            door=f"sim:{record.id}" if up and not stopped else None,
            created_at=record.created_at,
        )


def _image(record: ImageRecord) -> Image:
    return Image(ref=record.ref, parent=record.parent, created_at=record.created_at, size_bytes=record.size_bytes)
