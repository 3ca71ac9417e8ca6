"""The service's own promises, where HTTP would hide them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from controlplane.agentclient.port import AgentClient, Door
from controlplane.binding import MAX_CANDIDATES, Binder
from controlplane.clock import ManualClock, SystemClock
from controlplane.errors import Conflict, NotFound, Permanent, Retryable
from controlplane.ids import SessionId, TenantId
from controlplane.metrics import Metrics
from controlplane.model.tenancy import Tenant
from controlplane.runtime.simulated import SimulatedAgent, SimulatedRuntime
from controlplane.runtime.simulated.world import SandboxRecord, Up
from controlplane.sessions.request import AttachRequest
from controlplane.sessions.service import SessionLimits, SessionService
from controlplane.sessions.targets import KEEP_S, Targets
from controlplane.sessions.timing import Timings
from controlplane.store.port import Store
from controlplane.store.redis_store import RedisStore
from tests.store.world import ACME, POOL, World, new_world, until

GLOBEX = TenantId("globex")


class Rig:
    def __init__(self, store: RedisStore, world: World, agent: AgentClient | None = None) -> None:
        self.store = store
        self.world = world
        self.machines = SimulatedRuntime(start_s=0.0).world
        self.clock = ManualClock()
        sim: AgentClient = agent or SimulatedAgent(self.machines)  # type: ignore[assignment]
        self.binder = Binder(store, sim, actor="api", timeout_s=5.0)
        self.targets = Targets(store, self.clock)
        self.sessions = SessionService(store, self.binder, self.targets, Metrics(), SystemClock(), SessionLimits())

    async def ready(self) -> str:
        sandbox = await self.world.sandbox()
        record = SandboxRecord(
            id=sandbox.id, deployment="d", image="i", labels={}, egress=False, created_at=0.0, nonce="n"
        )
        self.machines.add_sandbox(record)
        self.machines.bring_up(sandbox.id, Up(0.0, 0.0))
        await self.store.sandbox_ready(sandbox.id, 3600.0)
        return sandbox.id


@pytest.fixture
async def rig(store: RedisStore) -> Rig:
    return Rig(store, await new_world(store))


async def test_a_share_that_was_withdrawn_is_kept_for_a_second_at_most(rig: Rig) -> None:
    await rig.world.put_template(shared_with=(GLOBEX,))
    wanted = AttachRequest(pool="acme/demo")
    assert (await rig.targets.resolve(GLOBEX, wanted)).pool.key == POOL
    await rig.world.put_template(shared_with=())
    rig.clock.advance(KEEP_S)
    with pytest.raises(NotFound):
        await rig.targets.resolve(GLOBEX, wanted)
    await rig.world.put_template(shared_with=("*",))
    assert (await rig.targets.resolve(GLOBEX, wanted)).pool.key == POOL  # What was missing is never kept.


async def test_a_pool_made_anew_after_it_was_kept_is_served(rig: Rig) -> None:
    body = AttachRequest(template="demo", ref=None, wait_s=0.0)
    first = await rig.sessions.attach(ACME, "k", body)
    assert first.session.pool == POOL
    await rig.store.delete_pool(POOL)
    again = await rig.sessions.attach(ACME, "k", body)  # The kept pool is gone: looked at again, once.
    assert again.session.pool != POOL and again.session.start_reason == "no_pool"


async def test_a_session_ended_while_it_is_bound_is_not_attached(store: RedisStore) -> None:
    world = await new_world(store)
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(SimulatedAgent):
        async def bind(  # type: ignore[override]
            self, door: Door, session: SessionId, tenant: str, env: Mapping[str, str], labels: Mapping[str, str]
        ) -> object:
            begun.set()
            await go.wait()
            return await super().bind(door, session, tenant, env, labels)

    rig = Rig(store, world)
    rig = Rig(store, world, Slow(rig.machines))  # type: ignore[arg-type]
    await world.ready()
    asked = asyncio.create_task(rig.sessions.attach(ACME, "k", AttachRequest(pool="demo", wait_s=0.0)))
    await begun.wait()
    session = (await store.list_sessions(ACME, ("binding",), {}, 1))[0]
    await rig.sessions.end(ACME, session.id, "key:k")
    go.set()
    with pytest.raises((Conflict, Retryable)) as refused:
        await asked
    assert refused.value.code in ("session_ended", "bind_failed")
    assert (await store.get_session(session.id)).end_reason == "deleted"


async def test_binding_gives_up_after_a_bounded_number_of_dead_sandboxes(rig: Rig) -> None:
    for _ in range(MAX_CANDIDATES + 3):
        await rig.world.ready()
    claimed = (await rig.world.claim()).session
    assert claimed is not None
    ended = await rig.binder.bind(claimed, Timings(SystemClock().monotonic).mark)
    assert (ended.state, ended.end_reason) == ("ended", "sandbox_failed")
    states = [await rig.world.state(s.id) for s in await rig.store.list_sandboxes(POOL)]
    assert states.count("ready") == 3


async def test_an_agent_that_never_answers_costs_its_time_limit_and_no_more(store: RedisStore) -> None:
    world = await new_world(store)

    class Silent(SimulatedAgent):
        async def bind(self, *_: object) -> object:  # type: ignore[override]
            await asyncio.Event().wait()
            return None

    rig = Rig(store, world)
    binder = Binder(store, Silent(rig.machines), actor="api", timeout_s=0.05)  # type: ignore[arg-type]
    await world.ready()
    claimed = (await world.claim()).session
    assert claimed is not None
    assert (await binder.bind(claimed, Timings(SystemClock().monotonic).mark)).state == "waiting"


async def test_ending_is_finished_even_when_the_caller_is_cancelled(rig: Rig) -> None:
    await rig.ready()
    session = (await rig.sessions.attach(ACME, "k", AttachRequest(pool="demo"))).session
    begun, go = asyncio.Event(), asyncio.Event()

    class Paused:
        def __getattr__(self, name: str) -> object:
            return getattr(rig.store, name)

        async def end_session(self, *args: str) -> object:
            begun.set()
            await go.wait()
            return await rig.store.end_session(*args)  # type: ignore[arg-type]

    store: Store = Paused()  # type: ignore[assignment]
    service = SessionService(store, rig.binder, rig.targets, Metrics(), SystemClock(), SessionLimits())
    ending = asyncio.create_task(service.end(ACME, session.id, "key:k"))
    await begun.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    go.set()

    async def ended() -> bool:
        return (await rig.store.get_session(session.id)).end_reason == "deleted"

    assert await until(ended)


async def test_a_lease_longer_than_the_tenants_limit_is_refused_and_a_templates_default_is_cut(rig: Rig) -> None:
    await rig.store.put_tenant(Tenant(id=ACME, max_ttl_s=50.0))
    with pytest.raises(Permanent) as refused:
        await rig.sessions.attach(ACME, "k", AttachRequest(pool="demo", ttl_s=51.0))
    assert refused.value.code == "invalid_ttl"
    waiting = await rig.sessions.attach(ACME, "k", AttachRequest(pool="demo", wait_s=0.0))
    assert waiting.session.ttl_s == 50.0
