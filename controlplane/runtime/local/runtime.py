"""The local adapter of the runtime port.

A sandbox is a directory (see ``records``), an overlay, control groups and a process tree. Every call takes
the sandbox's file lock, so calls of several processes about one sandbox come one after the other; a call
that was cut off anywhere is repaired by the next ``create`` or ``destroy`` of the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from controlplane.errors import Conflict, NotFound, Permanent, Retryable
from controlplane.ids import SandboxId
from controlplane.runtime import cgroups, inside
from controlplane.runtime.local import assembly, oci, probe, records
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.images import ImageStore, as_image
from controlplane.runtime.local.locks import Locks
from controlplane.runtime.local.records import SandboxPlace, StatePlaces
from controlplane.runtime.port import BaseSource, Capabilities, Image, Progress, RunningSandbox, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """``state_dir``: this deployment's folder. ``deployment``: its name, part of the cgroup path.
    ``oci_runtime``: auto, runc, crun or a path. ``ca_bundle``: PEM file of the host to trust inside.
    ``many_groups``: above so many memory groups of the whole host, a sandbox with more than it may have is lost."""

    state_dir: Path
    deployment: str
    ids: IdRange
    cgroup_parent: str = "warmpool"
    oci_runtime: str = "auto"
    many_groups: int = 16_384
    ca_bundle: Path | None = None
    agent_argv: tuple[str, ...] = inside.AGENT_ARGV


class LocalRuntime:
    """Implements ``controlplane.runtime.port.Runtime``. ``agent`` gives the directory that is mounted at
    /opt/warmpool."""

    name = "local"

    def __init__(self, options: LocalOptions, bases: BaseSource, agent: Callable[[], Awaitable[Path]]) -> None:
        root = options.state_dir.resolve() / "local"
        if set(str(root)) & set(":,\\"):
            raise Permanent("state_path_unusable", f"{root} holds ':', ',' or a backslash, which mounts cannot take.")
        self._options = options
        self._bases = bases
        self._agent = agent
        self._places = StatePlaces.at(root)
        self._images = ImageStore(self._places.images, options.ids)
        self._locks = Locks(self._places.locks)
        self._hierarchies = cgroups.find(Path("/proc/self/mountinfo").read_text())
        self._capabilities: Capabilities | None = None

    async def capabilities(self) -> Capabilities:
        """Found out once per process, by really starting a container (about 0.3 s)."""
        if self._capabilities is None:
            self._capabilities = await probe.capabilities(self._probe_input())
        return self._capabilities

    async def ensure_base(self, base: str, progress: Progress) -> Image:
        await asyncio.to_thread(self._places.make)
        built = await self._bases.ensure(base, progress)
        ref = self._images.base_ref(base, built.digest)
        async with self._locks.base() as lock:
            if not self._images.has(ref):
                progress(f"unpacking the base {base}")
                with _disk_errors():
                    return await self._images.add_base(ref, built.rootfs_tar, lock)
        return as_image(self._images.record(ref))

    async def base_digest(self, base: str) -> str:
        return await self._bases.recipe(base)

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        await asyncio.to_thread(self._places.make)
        self._places.sandbox(spec.id)
        agent = await self._agent()
        self._check_limits(spec)
        async with self._locks.sandbox(spec.id) as lock:
            if (found := self._observe(spec.id)) is not None and found.state == "running":
                return found
            if found is not None:
                await asyncio.to_thread(self._disassemble, spec.id)
            try:
                await self._start(spec, agent, lock)
            except BaseException:
                # Cancelled included: nothing half made stays behind where this process can still help it.
                await asyncio.shield(asyncio.to_thread(self._disassemble, spec.id))
                raise
            made = self._observe(spec.id)
        if made is None or made.state != "running":
            raise Retryable("sandbox_start_failed", f"Sandbox {spec.id} ended at once.", after_s=2)
        return made

    async def inspect(self, sandbox: SandboxId) -> RunningSandbox | None:
        return await asyncio.to_thread(self._observe, sandbox)

    async def list_sandboxes(self) -> list[RunningSandbox]:
        return await asyncio.to_thread(self._observe_all)

    async def destroy(self, sandbox: SandboxId) -> None:
        self._places.sandbox(sandbox)
        if not self._places.locks.exists():
            return
        async with self._locks.sandbox(sandbox):
            with _disk_errors():
                await asyncio.to_thread(self._disassemble, sandbox)

    async def commit(self, sandbox: SandboxId, ref_hint: str) -> Image:
        ref = records.check_ref(ref_hint)
        place = self._places.sandbox(sandbox)
        async with self._locks.sandbox(sandbox), self._locks.sealing(ref) as lock:
            if self._images.has(ref):
                return as_image(self._images.record(ref))
            found = records.read_sandbox(place)
            if found is None:
                raise NotFound("sandbox_not_found", f"There is no sandbox {sandbox} to commit.")
            with _disk_errors():
                await asyncio.to_thread(assembly.stop, place, self._hierarchies, self._cgroup(sandbox))
                return await self._images.seal(ref, found.image, place.upper, lock)

    async def list_images(self) -> list[Image]:
        await asyncio.to_thread(self._places.make)
        return await asyncio.to_thread(self._images.list)

    async def delete_image(self, ref: str) -> None:
        await asyncio.to_thread(self._places.make)
        async with self._locks.sealing(records.check_ref(ref)), self._locks.images(shared=False):
            if (user := await asyncio.to_thread(self._user_of, ref)) is not None:
                raise Conflict("image_in_use", f"Image {ref} is needed by sandbox {user}.")
            await asyncio.to_thread(self._images.retire, ref)
            await asyncio.to_thread(self._images.remove, ref)

    async def close(self) -> None:
        """Sandboxes live on; there is nothing of this process to give back."""

    async def _start(self, spec: SandboxSpec, agent: Path, lock: int) -> None:
        place = self._places.sandbox(spec.id)
        runtime = oci.OciRuntime(binary=probe.choose_binary(self._options.oci_runtime), state=self._places.oci)
        with _disk_errors():
            async with self._locks.images(shared=True):
                parts = assembly.Parts(
                    spec=spec,
                    place=place,
                    layers=self._images.layers(spec.image),
                    ids=self._options.ids,
                    hierarchies=self._hierarchies,
                    cgroup=self._cgroup(spec.id),
                    agent=agent,
                    argv=self._options.agent_argv,
                    ca_bundle=self._options.ca_bundle,
                    lock=lock,
                    now=time.time(),
                )
                door = await asyncio.to_thread(assembly.assemble, parts)
            with door:
                started = await runtime.start(spec.id, place, door, lock)
            records.write(place.started, started)

    def _check_limits(self, spec: SandboxSpec) -> None:
        missing = [name for name in ("memory", "cpu", "pids") if name not in cgroups.controllers(self._hierarchies)]
        if missing and not spec.trusted:
            raise Permanent(
                "limit_not_held",
                f"This host offers no cgroup controller for {', '.join(missing)}, so the sandbox could not be limited.",
                hint="Run `warmpool doctor`, or let an operator mark the template trusted.",
            )

    def _cgroup(self, sandbox: str) -> str:
        return f"{self._options.cgroup_parent}/{self._options.deployment}/{sandbox}"

    def _disassemble(self, sandbox: str) -> None:
        assembly.disassemble(
            self._places.sandbox(sandbox),
            self._places.remains(sandbox),
            self._hierarchies,
            self._cgroup(sandbox),
            self._places.oci / sandbox,
        )

    def _observe(self, sandbox: str) -> RunningSandbox | None:
        place, remains = self._places.sandbox(sandbox), self._places.remains(sandbox)
        if place.root.exists():
            seen = _seen(sandbox, place)
            if seen.state == "running" and (number := self._groups_made(sandbox)):
                # It is lost in any case, and must be before it takes the host along.
                return replace(seen, state="stopped", door=None, detail=f"it made {number} control groups")
            return seen
        return _seen(sandbox, remains) if remains.root.exists() else None

    def _groups_made(self, sandbox: str) -> int | None:
        return cgroups.flooding(self._hierarchies, self._cgroup(sandbox), self._options.many_groups)

    def _observe_all(self) -> list[RunningSandbox]:
        try:
            names = {path.name.removeprefix(".gone-") for path in self._places.sandboxes.iterdir()}
        except FileNotFoundError:
            return []
        found = (self._observe(name) for name in sorted(names))
        return [sandbox for sandbox in found if sandbox is not None]

    def _user_of(self, ref: str) -> str | None:
        for folder in self._places.sandboxes.iterdir():
            record = records.read_sandbox(SandboxPlace.at(folder))
            if record is not None and record.image == ref and not folder.name.startswith("."):
                return record.id
        return None

    def _probe_input(self) -> probe.ProbeInput:
        return probe.ProbeInput(
            places=self._places,
            hierarchies=self._hierarchies,
            ids=self._options.ids,
            cgroup=self._cgroup("probe"),
            oci_runtime=self._options.oci_runtime,
        )


def _seen(sandbox: str, place: SandboxPlace) -> RunningSandbox:
    record = records.read_sandbox(place)
    started = records.read_started(place)
    state: Literal["partial", "running", "stopped"] = "partial"
    if record is not None and started is not None:
        state = "running" if oci.runs(started) else "stopped"
    if record is None:
        return RunningSandbox(id=SandboxId(sandbox), state="partial", labels={}, detail="half made or half removed")
    return RunningSandbox(
        id=SandboxId(sandbox),
        state=state,
        labels=record.labels,
        door=f"unix:{place.door_in}" if state == "running" else None,
        egress_socket=str(place.door_out) if record.egress else None,
        created_at=record.created_at,
    )


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """What the host's kernel refuses, in the project's terms."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror} ({error.filename})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Retryable(
                "disk_full", f"The host has no space left: {what}.", after_s=30, hint="Free space in the state folder."
            ) from error
        raise Retryable("host_refused", f"The host refused a step: {what}.", after_s=5) from error
