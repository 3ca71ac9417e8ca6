"""Lets time pass for one session, by moving its stored times back instead of waiting."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio as aredis

from controlplane.ids import SessionId
from controlplane.store.keys import Keys

_TIMES = ("created_at", "claimed_at", "attached_at", "expires_at", "wait_until", "last_activity_at", "ended_at")
_INDEXES = ("deadlines", "idle", "live", "ended")


class Rewind:
    def __init__(self, client: aredis.Redis, key: Keys) -> None:
        self._client = client
        self._key = key

    async def session(self, session: SessionId, seconds: float) -> None:
        """As if everything that happened to the session had happened ``seconds`` earlier."""
        record = json.loads(await self._client.hget(self._key("sessions"), session))
        for name in _TIMES:
            if record.get(name) is not None:
                record[name] -= seconds
        await self._client.hset(self._key("sessions"), session, json.dumps(record))
        names = [self._key(n) for n in _INDEXES]
        names += [self._key(n, record["tenant"]) for n in ("live", "ended")]
        for name in names:
            await self._client.zadd(name, {session: -seconds}, xx=True, incr=True)


@asynccontextmanager
async def rewinding(url: str, deployment: str) -> AsyncIterator[Rewind]:
    client = aredis.Redis.from_url(url, decode_responses=True, protocol=2)
    yield Rewind(client, Keys(deployment))
    await client.aclose()
