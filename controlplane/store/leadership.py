"""Who leads, and the token that outdated leaders fail with."""

from __future__ import annotations

from controlplane.errors import Permanent
from controlplane.store.parts import StorePart
from controlplane.store.port import Leadership


class Leading(StorePart):
    async def lead(self, holder: str, ttl_s: float) -> Leadership | None:
        ttl_ms = round(ttl_s * 1000)
        if ttl_ms <= 0 or not holder:
            raise Permanent("invalid_lease", f"{holder!r} can't lead for {ttl_s} s.", hint="Name a holder and a time.")
        fence: int = await self._link.run("lead", {"holder": holder, "ttl_ms": ttl_ms})
        return Leadership(holder=holder, fence=fence, ttl_s=ttl_s) if fence else None

    async def resign(self, leadership: Leadership) -> None:
        await self._link.run("resign", {"holder": leadership.holder, "fence": leadership.fence})

    async def leader(self) -> str | None:
        holder = await self._link.command("GET", self._key("leader"))
        return None if holder is None else str(holder, "utf-8")
