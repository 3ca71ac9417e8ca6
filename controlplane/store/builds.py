"""Lineages, their versions and the builds that make these."""

from __future__ import annotations

from dataclasses import replace

from controlplane.ids import BuildId, LineageKey, TemplateKey, VersionId
from controlplane.model.template import Build, Lineage, Version
from controlplane.store.codec import decode, encode
from controlplane.store.parts import StorePart


def _ref_of(lineage: LineageKey) -> tuple[TemplateKey, str | None]:
    """The reverse of ``ids.lineage_key``: names hold no ``@``, refs may."""
    template, _, ref = lineage.partition("@")
    return TemplateKey(template), ref or None


class Builds(StorePart):
    async def get_lineage(self, key: LineageKey) -> Lineage | None:
        return await self._find(Lineage, "lineages", key)

    async def list_lineages(self) -> list[Lineage]:
        return await self._all(Lineage, "lineages")

    async def note_provision(self, lineage: LineageKey, ok: bool, error: str, retry_after_s: float) -> Lineage:
        args = {"lineage": lineage, "ok": ok, "error": error, "retry_after_s": retry_after_s}
        return decode(Lineage, await self._link.run("note_provision", args, repeat=ok))

    async def reset_lineage(self, key: LineageKey, rebuild: bool = True) -> None:
        template, ref = _ref_of(key)
        args = {"lineage": key, "template": template, "ref": ref, "rebuild": rebuild}
        await self._link.run("reset_lineage", args)

    async def forget_lineage(self, key: LineageKey) -> bool:
        return bool(await self._link.run("forget_lineage", {"lineage": key}))

    async def create_build(self, build: Build, fence: int) -> bool:
        _, ref = _ref_of(build.lineage)
        args = {
            "id": build.id,
            "lineage": build.lineage,
            "template": build.template,
            "tenant": build.tenant,
            "ref": ref,
            "fence": fence,
        }
        queued = replace(build, state="queued", ended_at=None)
        record = encode(queued, without=("created_at", "heartbeat_at"))
        return bool(await self._link.run("create_build", args, record))

    async def get_build(self, key: BuildId) -> Build:
        return await self._need(Build, "builds", key, "build")

    async def list_builds(self, template: TemplateKey | None, limit: int) -> list[Build]:
        """Newest first."""
        if limit <= 0:
            return []
        ids = await self._link.command("ZREVRANGE", self._key("builds_by_time", template), 0, limit - 1)
        return await self._some(Build, "builds", ids)

    async def update_build(self, build: Build) -> None:
        record = encode(build, without=("created_at", "heartbeat_at"))
        await self._link.run("update_build", {"id": build.id, "state": build.state}, record)

    async def finish_build(self, build: Build, version: Version | None, retry_after_s: float) -> None:
        ended = replace(
            build,
            state="succeeded" if version else "failed",
            version=version.id if version else None,
        )
        args = {
            "id": build.id,
            "state": ended.state,
            "error": build.error,
            "error_code": build.error_code,
            "retry_after_s": retry_after_s,
        }
        record = encode(ended, without=("created_at", "heartbeat_at", "ended_at"))
        made = b"" if version is None else encode(version, without=("created_at", "superseded_at"))
        await self._link.run("finish_build", args, record, made)

    async def get_version(self, key: VersionId) -> Version:
        return await self._need(Version, "versions", key, "version")

    async def find_version(self, key: VersionId) -> Version | None:
        return await self._find(Version, "versions", key)

    async def list_versions(self) -> list[Version]:
        return await self._all(Version, "versions")

    async def delete_version(self, key: VersionId) -> None:
        await self._link.run("delete_version", {"version": key})
