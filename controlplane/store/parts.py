"""What each part of the store builds on: its link, its key names, its wake-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from controlplane.errors import NotFound
from controlplane.store.codec import decode, decode_all
from controlplane.store.connection import Link
from controlplane.store.keys import Keys
from controlplane.store.wakeups import SessionWakeups

T = TypeVar("T")


class StorePart:
    """Base of the parts that together make the store."""

    _link: Link
    _key: Keys
    _wakeups: SessionWakeups

    async def _find(self, kind: type[T], name: str, key: str) -> T | None:
        raw = await self._link.command("HGET", self._key(name), key)
        return None if raw is None else decode(kind, raw)

    async def _need(self, kind: type[T], name: str, key: str, what: str) -> T:
        """The record, else NotFound ``{what}_not_found``."""
        found = await self._find(kind, name, key)
        if found is None:
            raise NotFound(f"{what}_not_found", f"There is no {what} {key}.")
        return found

    async def _all(self, kind: type[T], name: str) -> list[T]:
        return decode_all(kind, await self._link.command("HVALS", self._key(name)))

    async def _some(self, kind: type[T], name: str, keys: Sequence[str | bytes]) -> list[T]:
        """The records that exist of those asked for, in that order."""
        if not keys:
            return []
        raws = await self._link.command("HMGET", self._key(name), *keys)
        return decode_all(kind, [raw for raw in raws if raw is not None])

    async def _now(self) -> float:
        """The server's time, as the scripts see it."""
        seconds, micros = await self._link.command("TIME")
        return int(seconds) + int(micros) // 100 / 10_000
