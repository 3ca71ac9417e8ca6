"""Sandboxes: from building to gone."""

from __future__ import annotations

from collections import Counter

from controlplane.ids import PoolKey, SandboxId
from controlplane.model.sandbox import Sandbox, Session
from controlplane.store.codec import decode, decode_all, encode
from controlplane.store.parts import StorePart
from controlplane.store.port import NewSandbox, PoolCounts


class Sandboxes(StorePart):
    async def create_sandbox(self, new: NewSandbox, fence: int) -> bool:
        args = {"count_limit": new.count_limit, "deadline_s": new.deadline_s, "fence": fence}
        return bool(await self._link.run("create_sandbox", args, encode(new.sandbox)))

    async def get_sandbox(self, key: SandboxId) -> Sandbox:
        return await self._need(Sandbox, "sandboxes", key, "sandbox")

    async def find_sandbox(self, key: SandboxId) -> Sandbox | None:
        return await self._find(Sandbox, "sandboxes", key)

    async def list_sandboxes(self, pool: PoolKey | None) -> list[Sandbox]:
        if pool is None:
            return await self._all(Sandbox, "sandboxes")
        _, *raws = await self._link.run("pool_sandboxes", {"pool": pool})
        return decode_all(Sandbox, raws)

    async def pool_counts(self, key: PoolKey) -> PoolCounts:
        waiting, *raws = await self._link.run("pool_sandboxes", {"pool": key})
        states = Counter(sandbox.state for sandbox in decode_all(Sandbox, raws))
        return PoolCounts(
            ready=states["ready"],
            building=states["building"],
            claimed=states["claimed"] + states["paused"],
            draining=states["draining"],
            failed=states["failed"],
            waiting=waiting,
        )

    async def sandbox_step(self, key: SandboxId, step: str, door: str | None, deadline_s: float) -> Sandbox:
        args = {"sandbox": key, "step": step, "door": door, "deadline_s": deadline_s}
        return decode(Sandbox, await self._link.run("sandbox_step", args))

    async def sandbox_ready(self, key: SandboxId, max_age_s: float) -> Session | None:
        raw = await self._link.run("sandbox_ready", {"sandbox": key, "max_age_s": max_age_s})
        return None if raw is None else decode(Session, raw)

    async def fail_sandbox(self, key: SandboxId, reason: str, actor: str) -> Sandbox | None:
        raw = await self._link.run("fail_sandbox", {"sandbox": key, "reason": reason, "actor": actor})
        return None if raw is None else decode(Sandbox, raw)

    async def drain_sandbox(
        self, key: SandboxId, reason: str, actor: str, fence: int | None, unclaimed_only: bool
    ) -> bool:
        args = {"sandbox": key, "reason": reason, "actor": actor, "fence": fence, "unclaimed_only": unclaimed_only}
        return bool(await self._link.run("drain_sandbox", args))

    async def sandbox_gone(self, key: SandboxId) -> None:
        await self._link.run("sandbox_gone", {"sandbox": key})

    async def adopt(self, sandbox: Sandbox, session: Session | None) -> bool:
        records = [encode(sandbox)] if session is None else [encode(sandbox), encode(session)]
        return bool(await self._link.run("adopt", {"has_session": session is not None}, *records))
