"""Collecting what nobody needs any more: images of superseded versions, logs of forgotten builds, doors."""

from __future__ import annotations

import logging

from controlplane.artifacts.port import BuildLogs
from controlplane.clock import Clock, SystemClock
from controlplane.egressclient.port import EgressGateway
from controlplane.errors import Conflict, NotFound, Retryable
from controlplane.ids import BuildId, SandboxId, lineage_key
from controlplane.model.template import Build, Version
from controlplane.runtime.port import Runtime
from controlplane.store.port import Store

log = logging.getLogger(__name__)

_ALL = 1_000_000
# Made but not yet published, begun but not yet recorded: such things are young.
_YOUNG_S = 600.0


class Garbage:
    """``keep_superseded_s``: how long the image of a superseded version without sandboxes is kept;
    ``keep_unused_ref_s``: how long after its build a ref stays known that no pool names."""

    def __init__(
        self,
        *,
        store: Store,
        runtime: Runtime,
        logs: BuildLogs,
        egress: EgressGateway | None = None,
        keep_superseded_s: float = 600.0,
        keep_unused_ref_s: float = 3600.0,
        young_s: float = _YOUNG_S,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._logs = logs
        self._egress = egress
        self._keep_superseded_s = keep_superseded_s
        self._keep_unused_ref_s = keep_unused_ref_s
        self._young_s = young_s
        self._clock = clock or SystemClock()

    async def collect(self) -> None:
        builds = await self._store.list_builds(None, _ALL)
        await self._forget_refs()
        await self._collect_versions()
        await self._collect_images(builds)
        await self._collect_logs(builds)
        await self._close_doors(builds)

    async def _forget_refs(self) -> None:
        """Each ref that was ever attached to has a version of its own, and with it an image."""
        now = await self._store.now()
        built_at = {version.id: version.created_at for version in await self._store.list_versions()}
        named = {lineage_key(pool.template, pool.ref) for pool in await self._store.list_pools()}
        for lineage in await self._store.list_lineages():
            if lineage.ref is None or lineage.key in named:
                continue
            since = lineage.next_attempt_at if lineage.current is None else built_at.get(lineage.current, 0.0)
            # 0 without a version: it was only just asked for.
            if (lineage.current is None and not since) or now - since < self._keep_unused_ref_s:
                continue
            if await self._store.forget_lineage(lineage.key):
                log.info("forgot %s, which no pool names", lineage.key)

    async def _collect_versions(self) -> None:
        now = await self._store.now()
        used = {sandbox.version for sandbox in await self._store.list_sandboxes(None)}
        for version in await self._store.list_versions():
            superseded_at = version.superseded_at
            if superseded_at is None or version.id in used or now - superseded_at < self._keep_superseded_s:
                continue
            await self._collect_version(version)

    async def _collect_version(self, version: Version) -> None:
        """The record first: it refuses when something uses the version, and an image without a version is
        collected later in any case."""
        try:
            await self._store.delete_version(version.id)
            if version.runtime == self._runtime.name:
                await self._runtime.delete_image(version.image)
        except Conflict as error:
            log.info("version %s is kept for now: %s", version.id, error.message)

    async def _collect_images(self, builds: list[Build]) -> None:
        known = {version.image for version in await self._store.list_versions()}
        names = {build.version for build in builds if build.state in ("queued", "running") and build.version}
        for image in await self._runtime.list_images():
            unpublished = any(name in image.ref for name in names)
            young = self._clock.now() - image.created_at < self._young_s
            if image.parent is None or image.ref in known or unpublished or young:
                continue
            try:
                await self._runtime.delete_image(image.ref)
                log.info("collected image %s, which no version names", image.ref)
            except Conflict as error:
                log.info("image %s is kept for now: %s", image.ref, error.message)

    async def _collect_logs(self, builds: list[Build]) -> None:
        known = {build.id for build in builds}
        for build, changed_at in (await self._logs.builds()).items():
            if build not in known and self._clock.now() - changed_at > self._young_s:
                await self._logs.delete(build)

    async def _close_doors(self, builds: list[Build]) -> None:
        """A door that outlived its build's sandbox."""
        if self._egress is None:
            return
        live = {build.sandbox for build in builds if build.state in ("queued", "running")}
        try:
            for door in await self._egress.list_doors():
                if door.labels.get("purpose") == "build" and door.id not in live:
                    if await self._still_live(door.labels.get("build", ""), door.id):
                        continue
                    await self._egress.delete_door(SandboxId(door.id))
        except Retryable as error:
            log.info("doors are not looked at: %s", error.message)

    async def _still_live(self, build_id: str, sandbox: str) -> bool:
        """Read again: the build may have begun after the list was read."""
        try:
            build = await self._store.get_build(BuildId(build_id))
        except NotFound:
            return False
        return build.state in ("queued", "running") and build.sandbox == sandbox
