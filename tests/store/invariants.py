"""Reads every key of a deployment and checks that indexes and records say the same."""

from __future__ import annotations

import json
from typing import Any

import redis.asyncio as aredis

from controlplane.store.keys import Keys

Record = dict[str, Any]


async def check_invariants(url: str, deployment: str) -> None:
    client = aredis.Redis.from_url(url, decode_responses=True, protocol=2)
    try:
        await _Reading(client, Keys(deployment)).check()
    finally:
        await client.aclose()


class _Reading:
    def __init__(self, client: aredis.Redis, key: Keys) -> None:
        self.client = client
        self.key = key

    async def records(self, kind: str) -> dict[str, Record]:
        flat = await self.client.hgetall(self.key(kind))
        return {name: json.loads(raw) for name, raw in flat.items()}

    async def scored(self, name: str, of: str | None = None) -> dict[str, float]:
        return dict(await self.client.zrange(self.key(name, of), 0, -1, withscores=True))

    async def members(self, name: str, of: str) -> set[str]:
        return set(await self.client.smembers(self.key(name, of)))

    async def of(self, name: str) -> set[str]:
        """Every OF for which ``name:OF`` exists."""
        prefix = self.key(name, "")
        return {
            found.removeprefix(prefix) async for found in self.client.scan_iter(match=f"{_glob(prefix)}*", count=1000)
        }

    async def check(self) -> None:
        self.sandboxes = await self.records("sandboxes")
        self.sessions = await self.records("sessions")
        self.pools = await self.records("pools")
        await self.check_holding()
        await self.check_sandbox_indexes()
        await self.check_queues()
        await self.check_session_indexes()

    async def check_holding(self) -> None:
        """A sandbox has at most one session, and both sides say so."""
        held = {s["sandbox"]: s for s in self.sessions.values() if s["state"] not in ("waiting", "ended")}
        holding = [s for s in self.sessions.values() if s["state"] not in ("waiting", "ended")]
        assert len(held) == len(holding), "two sessions hold one sandbox"
        for session in holding:
            sandbox = self.sandboxes[session["sandbox"]]
            assert sandbox["state"] in ("claimed", "paused"), (sandbox, session)
            assert sandbox["session"] == session["id"]
        for sandbox in self.sandboxes.values():
            claimed = sandbox["state"] in ("claimed", "paused")
            assert claimed == (sandbox.get("session") is not None), sandbox
            assert not claimed or sandbox["id"] in held, "claimed by nobody"

    async def check_sandbox_indexes(self) -> None:
        for pool in {s["pool"] for s in self.sandboxes.values()} | await self.of("pool_sandboxes"):
            mine = {s["id"] for s in self.sandboxes.values() if s["pool"] == pool}
            assert await self.members("pool_sandboxes", pool) == mine
            if pool in self.pools:
                assert len(mine) <= self.pools[pool]["max_total"], "overfilled"
        for pool in {s["pool"] for s in self.sandboxes.values()} | await self.of("ready"):
            ready = {
                f"{s['version']}|{s['id']}": s["ready_at"]
                for s in self.sandboxes.values()
                if s["pool"] == pool and s["state"] == "ready"
            }
            assert await self.scored("ready", pool) == ready
        for version in {s["version"] for s in self.sandboxes.values()} | await self.of("version_sandboxes"):
            mine = {s["id"] for s in self.sandboxes.values() if s["version"] == version}
            assert await self.members("version_sandboxes", version) == mine

    async def check_queues(self) -> None:
        lengths = {k: int(v) for k, v in (await self.client.hgetall(self.key("waiting"))).items()}
        waiting: dict[str, set[str]] = {}
        for session in self.sessions.values():
            if session["state"] == "waiting":
                waiting.setdefault(session["pool"], set()).add(session["id"])
        assert lengths == {pool: len(ids) for pool, ids in waiting.items()}
        for pool in set(waiting) | await self.of("waiters"):
            places = await self.scored("waiters", pool)
            assert set(places) == waiting.get(pool, set())
            assert len(set(places.values())) == len(places), "two sessions share a place"

    async def check_session_indexes(self) -> None:
        live = {s["id"]: s["created_at"] for s in self.sessions.values() if s["state"] != "ended"}
        ended = {s["id"]: s["ended_at"] for s in self.sessions.values() if s["state"] == "ended"}
        assert await self.scored("live") == live
        assert await self.scored("ended") == ended
        for tenant in {s["tenant"] for s in self.sessions.values()} | await self.of("live"):
            mine = {k: v for k, v in live.items() if self.sessions[k]["tenant"] == tenant}
            assert await self.scored("live", tenant) == mine, "quota differs from the sessions that live"
        assert set(await self.scored("deadlines")) == set(live)
        idle = {s["id"] for s in self.sessions.values() if s["state"] == "attached" and s.get("idle_timeout_s")}
        assert set(await self.scored("idle")) == idle
        for tenant in {s["tenant"] for s in self.sessions.values()}:
            for session in (await self.client.hgetall(self.key("idempotency", tenant))).values():
                assert session in self.sessions, "an idempotency key outlived its session"


def _glob(text: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)
