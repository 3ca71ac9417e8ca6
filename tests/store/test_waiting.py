"""Waiting for sessions: thousands in one process, none forgotten."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.errors import NotFound
from controlplane.ids import SessionId
from controlplane.model.sandbox import Session
from controlplane.model.tenancy import Tenant
from controlplane.store.redis_store import RedisStore, StoreOptions
from tests.store.world import ACME, World, until


async def test_the_wait_ends_when_the_session_is_attached(world: World) -> None:
    session = (await world.claim()).session
    assert session is not None
    waiting = asyncio.create_task(world.store.wait_session(session.id, 60.0))
    served = await world.store.sandbox_ready((await world.sandbox()).id, 3600.0)
    assert served is not None and served.sandbox is not None
    assert not waiting.done(), "binding is not yet an end"
    await world.store.bound(served.id, served.sandbox)
    assert (await asyncio.wait_for(waiting, 20.0)).state == "attached"


async def test_the_wait_ends_when_the_session_ends(world: World) -> None:
    session = (await world.claim()).session
    assert session is not None
    waiting = asyncio.create_task(world.store.wait_session(session.id, 60.0))
    await world.store.end_session(session.id, "deleted", "", "k1")
    assert (await asyncio.wait_for(waiting, 20.0)).end_reason == "deleted"


async def test_a_session_that_has_settled_is_returned_at_once(world: World) -> None:
    session = await world.attached()
    assert await world.store.wait_session(session.id, 0.0) == session
    assert await world.store.wait_session(session.id, 60.0) == session


async def test_after_the_time_the_session_is_returned_as_it_is(world: World) -> None:
    session = (await world.claim()).session
    assert session is not None
    assert (await world.store.wait_session(session.id, 0.05)).state == "waiting"
    with pytest.raises(NotFound):
        await world.store.wait_session(SessionId("se-none"), 1.0)


async def test_no_wake_up_is_lost_among_a_thousand_waiters(world: World, valkey_url: str, deployment: str) -> None:
    await world.store.put_tenant(Tenant(id=ACME, max_sessions=5000))
    # Another process makes the changes.
    other = RedisStore(valkey_url, deployment, StoreOptions(operation_timeout_s=20.0))
    sessions: list[Session] = []
    for _ in range(1000):
        session = (await world.claim(max_waiting=5000)).session
        assert session is not None
        sessions.append(session)
    connections = await _clients(world)
    # Ends run into the waits' beginnings, so that many fall between subscribing and reading.
    waits = [asyncio.create_task(world.store.wait_session(s.id, 100.0)) for s in sessions]
    for session in sessions:
        await other.end_session(session.id, "deleted", "", "k1")
    ended = await asyncio.wait_for(asyncio.gather(*waits), 60.0)
    assert {s.state for s in ended} == {"ended"}
    assert await _clients(world) < connections + 40, "waiters share one subscription"
    assert world.store._wakeups._expected == {}  # type: ignore[attr-defined]
    await other.close()


async def _clients(world: World) -> int:
    info = await world.store._link.command("INFO", "clients")  # type: ignore[attr-defined]
    return int(info["connected_clients"])


async def test_a_cut_subscription_is_made_again_and_nothing_is_missed(world: World) -> None:
    link = world.store._link  # type: ignore[attr-defined]
    session = (await world.claim()).session
    assert session is not None
    waiting = asyncio.create_task(world.store.wait_session(session.id, 100.0))

    async def subscribers() -> int:
        channel = world.store._key("sessions_moved")  # type: ignore[attr-defined]
        count: int = (await link.command("PUBSUB", "NUMSUB", channel))[0][1]
        return count

    await until(subscribers)
    await link.command("CLIENT", "KILL", "TYPE", "pubsub")
    await until(subscribers)
    await world.store.end_session(session.id, "deleted", "", "k1")
    assert (await asyncio.wait_for(waiting, 20.0)).state == "ended"
