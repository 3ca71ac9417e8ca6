"""A small world in a store: a tenant, a template with a version, a pool, and sandboxes in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from controlplane.ids import (
    BuildId,
    PoolKey,
    SandboxId,
    SessionId,
    TenantId,
    VersionId,
    lineage_key,
    new_build_id,
    new_sandbox_id,
    new_session_id,
    pool_key,
    template_key,
)
from controlplane.model.sandbox import Sandbox, Session
from controlplane.model.template import Build, Pool, Template, Version
from controlplane.model.tenancy import Tenant
from controlplane.store.port import ClaimRequest, ClaimResult, NewSandbox, Store

ACME = TenantId("acme")
DEMO = template_key(ACME, "demo")
POOL = pool_key(ACME, "demo")
LINEAGE = lineage_key(DEMO, None)
V1 = VersionId("v1")
V2 = VersionId("v2")


async def until(condition: Callable[[], Awaitable[Any]], within_s: float = 20.0) -> Any:
    """The first true value of ``condition``, asked again and again."""
    end = asyncio.get_running_loop().time() + within_s
    while True:
        value = await condition()
        if value:
            return value
        assert asyncio.get_running_loop().time() < end, "the condition did not come true in time"
        await asyncio.sleep(0.01)


class World:
    """Verbs for tests; everything goes through the port."""

    def __init__(self, store: Store, fence: int) -> None:
        self.store = store
        self.fence = fence

    async def put_template(self, **changes: Any) -> Template:
        return await self.store.put_template(replace(Template(key=DEMO, tenant=ACME, name="demo"), **changes))

    async def put_pool(self, name: str = "demo", **changes: Any) -> Pool:
        pool = Pool(key=pool_key(ACME, name), tenant=ACME, name=name, template=DEMO, max_total=50)
        return await self.store.put_pool(replace(pool, **changes))

    async def start_build(self, *, ref: str | None = None, build: BuildId | None = None) -> Build:
        template = await self.store.get_template(DEMO)
        made = Build(
            id=build or new_build_id(),
            lineage=lineage_key(DEMO, ref),
            template=DEMO,
            tenant=ACME,
            revision=template.revision,
        )
        assert await self.store.create_build(made, self.fence)
        running = replace(made, state="running")
        await self.store.update_build(running)
        return running

    def version(self, build: Build, key: VersionId) -> Version:
        return Version(
            id=key,
            lineage=build.lineage,
            template=DEMO,
            tenant=ACME,
            image=f"/images/{key}",
            runtime="simulated",
            revision=build.revision,
        )

    async def publish(self, key: VersionId = V1, *, ref: str | None = None) -> None:
        build = await self.start_build(ref=ref)
        await self.store.finish_build(build, self.version(build, key), 0.0)

    async def sandbox(self, *, pool: PoolKey = POOL, version: VersionId = V1, **changes: Any) -> Sandbox:
        """One that is being built."""
        home = await self.store.get_pool(pool)
        sandbox = Sandbox(
            id=new_sandbox_id(),
            pool=pool,
            pool_uid=home.uid,
            tenant=ACME,
            lineage=lineage_key(home.template, home.ref),
            version=version,
            revision=1,
            state="building",
            runtime="simulated",
            memory_bytes=home.resources.memory_bytes,
            cpu_cores=home.resources.cpu_cores,
            pids=home.resources.pids,
            disk_bytes=home.resources.disk_bytes,
        )
        sandbox = replace(sandbox, **changes)
        assert await self.store.create_sandbox(NewSandbox(sandbox=sandbox, count_limit=1000), self.fence)
        await self.store.sandbox_step(sandbox.id, "starting", f"sim:{sandbox.id}", 60.0)
        return await self.store.get_sandbox(sandbox.id)

    async def ready(self, *, max_age_s: float = 3600.0, **changes: Any) -> SandboxId:
        sandbox = await self.sandbox(**changes)
        await self.store.sandbox_ready(sandbox.id, max_age_s)
        return sandbox.id

    async def claim(self, **changes: Any) -> ClaimResult:
        request = ClaimRequest(session=new_session_id(), tenant=ACME, api_key="k1", pool=POOL, ttl_s=600.0, wait_s=60.0)
        return await self.store.claim(replace(request, **changes))

    async def attached(self, **changes: Any) -> Session:
        """A session on a new ready sandbox."""
        await self.ready()
        session = (await self.claim(**changes)).session
        assert session is not None and session.sandbox is not None
        return await self.store.bound(session.id, session.sandbox)

    async def kinds(self) -> list[str]:
        return [event.kind for event in await self.store.read_events("0", None, 10_000, 0.0)]

    async def state(self, sandbox: SandboxId) -> str:
        found = await self.store.find_sandbox(sandbox)
        return found.state if found else "gone"

    async def session_state(self, session: SessionId) -> str:
        return (await self.store.get_session(session)).state


async def new_world(store: Store, *, max_sessions: int = 100, published: bool = True) -> World:
    leadership = await store.lead("test", 600.0)
    assert leadership is not None
    world = World(store, leadership.fence)
    await store.put_tenant(Tenant(id=ACME, max_sessions=max_sessions))
    await world.put_template()
    await world.put_pool()
    if published:
        await world.publish()
    return world
