"""Which processes are here, and what they say of themselves. Kept in one hash per role: few, and read whole."""

from __future__ import annotations

from controlplane.store.parts import StorePart

# An entry that has run out is removed by a reader so much later: a clock that jumped must not lose a living one.
_REMOVE_AFTER_S = 60.0


class Presence(StorePart):
    async def announce(self, role: str, holder: str, facts: str, ttl_s: float) -> None:
        until = await self._now() + ttl_s
        await self._link.command("HSET", self._key("announced", role), holder, f"{until:.3f} {facts}")

    async def announced(self, role: str) -> dict[str, str]:
        now = await self._now()
        flat = await self._link.command("HGETALL", self._key("announced", role))
        found = {}
        for holder, value in flat.items():
            until, _, facts = value.decode().partition(" ")
            if now < float(until):
                found[holder.decode()] = facts
            elif now > float(until) + _REMOVE_AFTER_S:
                await self._link.command("HDEL", self._key("announced", role), holder)
        return found
