"""The docker adapter of the runtime port.

A sandbox is a folder (see ``places``), control groups where this host can delegate them, and a container.
Each call runs as one piece in a thread and holds the sandbox's file lock, so that cancelling a caller
leaves nothing half done, and calls of several processes about one sandbox come one after the other.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from controlplane.errors import Conflict, NotFound, Permanent, Retryable
from controlplane.ids import SandboxId
from controlplane.runtime import cgroups
from controlplane.runtime.docker import container, probe
from controlplane.runtime.docker.engine import Container, Engine
from controlplane.runtime.docker.images import Images
from controlplane.runtime.docker.places import SandboxPlace, SandboxRecord, StatePlaces
from controlplane.runtime.docker.probe import Ground
from controlplane.runtime.port import BaseSource, Capabilities, Image, Progress, RunningSandbox, SandboxSpec

_THREADS = 8
_STOP_GRACE_S = 10
_LATE_REQUEST_S = 5.0
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerOptions:
    """``state_dir``: this deployment's folder. ``base_url``: the engine, None for DOCKER_HOST or the usual
    socket. ``ca_bundle``: PEM file of the host to trust inside."""

    state_dir: Path
    deployment: str
    base_url: str | None = None
    cgroup_parent: str = "warmpool"
    ca_bundle: Path | None = None


class DockerRuntime:
    """Implements ``controlplane.runtime.port.Runtime``. ``agent`` gives the directory that is mounted at
    /opt/warmpool."""

    name = "docker"

    def __init__(self, options: DockerOptions, bases: BaseSource, agent: Callable[[], Awaitable[Path]]) -> None:
        self._options = options
        self._bases = bases
        self._agent = agent
        self._engine = Engine(options.base_url)
        self._places = StatePlaces(options.state_dir.resolve() / "docker")
        self._images = Images(self._engine, self._places, options.deployment)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self._ground: Ground | None = None

    async def capabilities(self) -> Capabilities:
        return await self._run(self._find_capabilities)

    async def ensure_base(self, base: str, progress: Progress) -> Image:
        built = await self._bases.ensure(base, progress)
        return await self._run(self._images.ensure_base, base, built.digest, built.rootfs_tar, progress)

    async def base_digest(self, base: str) -> str:
        return await self._bases.recipe(base)

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        agent = await self._agent()
        return await self._run(self._create, spec, agent)

    async def inspect(self, sandbox: SandboxId) -> RunningSandbox | None:
        return await self._run(self._inspect, sandbox)

    async def list_sandboxes(self) -> list[RunningSandbox]:
        return await self._run(self._list)

    async def destroy(self, sandbox: SandboxId) -> None:
        await self._run(self._destroy, sandbox)

    async def commit(self, sandbox: SandboxId, ref_hint: str) -> Image:
        return await self._run(self._commit, sandbox, ref_hint)

    async def list_images(self) -> list[Image]:
        return await self._run(self._images.list)

    async def delete_image(self, ref: str) -> None:
        await self._run(self._delete_image, ref)

    async def close(self) -> None:
        """Sandboxes live on; threads end after the calls they are in."""
        self._threads.shutdown(wait=False)
        self._engine.close()

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **kwargs))

    def _find_capabilities(self) -> Capabilities:
        return probe.capabilities(self._engine, self._options.base_url)

    def _stand(self) -> Ground:
        """What the sandboxes stand on, found out once per process. Raises Permanent ``runtime_unusable``."""
        if self._ground is None:
            self._ground = probe.ground(self._engine, self._options.base_url)
        return self._ground

    def _create(self, spec: SandboxSpec, agent: Path) -> RunningSandbox:
        ground = self._stand()
        probe.check_limits(spec, ground)
        place = self._places.sandbox(spec.id)
        with self._places.lock(spec.id):
            found = self._observe(spec.id)
            if found is not None and found.state != "partial":
                return found
            if found is not None:
                self._take_apart(spec.id)
            if self._engine.image(spec.image) is None:
                raise NotFound(
                    "image_not_found", f"There is no image {spec.image!r}.", hint="Build its template again."
                )
            try:
                self._assemble(spec, place, agent, ground)
            except OSError as error:
                self._take_apart(spec.id)
                raise _disk_error(error) from error
            except BaseException:
                self._take_apart(spec.id)
                raise
            made = self._observe(spec.id)
        if made is None or made.state != "running":
            detail = made.detail if made else "it is gone"
            raise Retryable("sandbox_start_failed", f"Sandbox {spec.id} ended at once: {detail}.", after_s=2)
        return made

    def _assemble(self, spec: SandboxSpec, place: SandboxPlace, agent: Path, ground: Ground) -> None:
        delegated: dict[str, Path] = {}
        path = self._cgroup(spec.id)
        if ground.hierarchies is not None:
            delegated = ground.hierarchies.directories(f"{path}/{cgroups.DELEGATED}")
        shape = container.Shape(
            spec=spec,
            deployment=self._options.deployment,
            place=place,
            agent=agent,
            mapped_root=ground.mapped_root,
            ca_bundle=self._options.ca_bundle,
            cgroup_parent=f"/{path}/{cgroups.DELEGATED}" if delegated else None,
            delegated=delegated,
            machine=os.uname().machine if ground.facts.seccomp else None,
        )
        record = SandboxRecord(
            id=spec.id,
            image=spec.image,
            labels=dict(spec.labels),
            egress=spec.egress,
            created_at=time.time(),
        )
        place.make(record, container.daemon_config(shape), ground.mapped_root, docker=spec.docker)
        if ground.hierarchies is not None:
            cgroups.create(ground.hierarchies, path, spec.resources, ground.mapped_root)
        self._engine.start(self._make_container(spec.id, container.config(shape)))

    def _make_container(self, sandbox: str, config: dict[str, Any]) -> str:
        """Its id. Conflict ``sandbox_exists`` when its name belongs to something else."""
        name = self._container_name(sandbox)
        deadline = time.monotonic() + _LATE_REQUEST_S
        while (made := self._engine.create(name, config)) is None:
            # The engine may only now have done what a creator asked for that was killed, or be at it still: then
            # the name is taken, and the container not listed yet.
            late = self._containers(sandbox)
            for each in late:
                self._engine.remove(each.id)
            if not late:
                if time.monotonic() > deadline:
                    raise Conflict("sandbox_exists", f"A container named {name} is not this sandbox.")
                time.sleep(0.05)
        return made

    def _inspect(self, sandbox: str) -> RunningSandbox | None:
        self._places.sandbox(sandbox)
        return self._observe(sandbox)

    def _observe(self, sandbox: str) -> RunningSandbox | None:
        found = self._containers(sandbox)
        record = self._places.sandbox(sandbox).read()
        if not found:
            exists = self._places.sandbox(sandbox).root.exists()
            return self._without_container(sandbox, record) if exists else None
        running = self._running(found[0])
        if running.state != "stopped":
            return running
        return self._running(found[0], self._engine.console(found[0].id))

    def _list(self) -> list[RunningSandbox]:
        # Folders first: a sandbox that is destroyed between the two looks is then still listed, never one
        # that is being made listed as without a container although it has one.
        folders = self._places.sandboxes()
        found = {each.labels[container.LABEL_SANDBOX]: self._running(each) for each in self._containers()}
        for place in folders:
            if place.root.name not in found and place.root.exists():
                found[place.root.name] = self._without_container(place.root.name, place.read())
        return list(found.values())

    def _destroy(self, sandbox: str) -> None:
        self._places.sandbox(sandbox)
        with self._places.lock(sandbox):
            try:
                self._take_apart(sandbox)
            except OSError as error:
                raise _disk_error(error) from error

    def _take_apart(self, sandbox: str) -> None:
        for each in self._containers(sandbox):
            self._engine.remove(each.id)
        hierarchies = probe.hierarchies()
        cgroups.kill(hierarchies, self._cgroup(sandbox))
        cgroups.remove(hierarchies, self._cgroup(sandbox))
        self._places.sandbox(sandbox).remove()

    def _commit(self, sandbox: str, ref_hint: str) -> Image:
        ref = self._images.ref(ref_hint)
        self._places.sandbox(sandbox)
        with self._places.lock(sandbox):
            if (existing := self._images.find(ref)) is not None:
                return existing
            found = self._containers(sandbox)
            if not found:
                raise NotFound("sandbox_not_found", f"There is no sandbox {sandbox} to commit.")
            self._engine.stop(found[0].id, _STOP_GRACE_S)
            return self._images.seal(found[0].id, ref, found[0].labels.get(container.LABEL_IMAGE))

    def _delete_image(self, ref: str) -> None:
        users = [
            each.labels[container.LABEL_SANDBOX]
            for each in self._containers()
            if each.labels.get(container.LABEL_IMAGE) == ref
        ]
        if users:
            raise Conflict("image_in_use", f"Image {ref} is needed by sandbox {users[0]}.")
        self._images.delete(ref)

    def _containers(self, sandbox: str | None = None) -> list[Container]:
        wanted = {container.LABEL_DEPLOYMENT: self._options.deployment}
        if sandbox is not None:
            wanted[container.LABEL_SANDBOX] = sandbox
        return self._engine.containers(wanted)

    def _running(self, found: Container, console: str = "") -> RunningSandbox:
        sandbox = SandboxId(found.labels[container.LABEL_SANDBOX])
        place = self._places.sandbox(sandbox)
        record = place.read()
        up = found.state == "running"
        return RunningSandbox(
            id=sandbox,
            state="running" if up else "stopped" if found.state in ("exited", "dead") else "partial",
            labels=container.read_labels(found.labels),
            door=f"unix:{place.socket_in}" if up else None,
            egress_socket=str(place.socket_out) if found.labels.get(container.LABEL_EGRESS) == "1" else None,
            created_at=record.created_at if record else found.created_at,
            detail="" if up else f"{found.status} {console}".strip(),
        )

    def _without_container(self, sandbox: str, record: SandboxRecord | None) -> RunningSandbox:
        return RunningSandbox(
            id=SandboxId(sandbox),
            state="partial",
            labels=record.labels if record else {},
            created_at=record.created_at if record else 0.0,
            detail="no container",
        )

    def _container_name(self, sandbox: str) -> str:
        return f"warmpool-{self._options.deployment}-{sandbox}"

    def _cgroup(self, sandbox: str) -> str:
        # The dot keeps it apart from the local runtime's: no deployment's name has one.
        return f"{self._options.cgroup_parent}/{self._options.deployment}.docker/{sandbox}"


def _disk_error(error: OSError) -> Retryable | Permanent:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Retryable("disk_full", "The disk of the state folder is full.", after_s=60, hint="Free space.")
    if error.errno == errno.EBUSY:
        return Retryable("sandbox_busy", f"The host is still busy with the sandbox: {error}.", after_s=2)
    return Permanent("host_refused", f"The host refused a step of this sandbox: {error}.")
