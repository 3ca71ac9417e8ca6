"""Lets time pass for one session, by moving its stored times back instead of waiting."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio as aredis

from controlplane.ids import SessionId
from controlplane.store.keys import Keys

_TIMES = ("created_at", "claimed_at", "attached_at", "expires_at", "wait_until", "last_activity_at", "ended_at")


class Rewind:
    def __init__(self, client: aredis.Redis, key: Keys) -> None:
        self._client = client
        self._key = key

    async def session(self, session: SessionId, seconds: float) -> None:
        """As if everything that happened to the session had happened ``seconds`` earlier."""
        record = json.loads(await self._client.hget(self._key("sessions"), session))
        for name in _TIMES:
            if record.get(name) is not None:
                record[name] = round(record[name] - seconds, 4)
        await self._client.hset(self._key("sessions"), session, json.dumps(record))
        for name in ("deadlines", "idle"):
            await self._client.zadd(self._key(name), {session: -seconds}, xx=True, incr=True)
        for of in (None, record["tenant"]):
            await self._client.zadd(self._key("live", of), {session: record["created_at"]}, xx=True)
            if record.get("ended_at"):
                await self._client.zadd(self._key("ended", of), {session: record["ended_at"]}, xx=True)

    async def forget_everything(self) -> None:
        """As if the server had lost all of this deployment's state."""
        names = [name async for name in self._client.scan_iter(match=f"{self._key.prefix}*", count=1000)]
        if names:
            await self._client.delete(*names)


@asynccontextmanager
async def rewinding(url: str, deployment: str) -> AsyncIterator[Rewind]:
    client = aredis.Redis.from_url(url, decode_responses=True, protocol=2)
    yield Rewind(client, Keys(deployment))
    await client.aclose()
