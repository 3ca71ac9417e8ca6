"""One deployment in one process: a real store, simulated sandboxes, real services, jobs run on the spot.

``Crashes`` lets the process "die" between any two calls that leave it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from controlplane.agentclient.port import AgentClient
from controlplane.artifacts import FolderBuildLogs
from controlplane.binding import Binder
from controlplane.forecast import Steady
from controlplane.ids import (
    BuildId,
    PoolKey,
    SandboxId,
    TemplateKey,
    TenantId,
    VersionId,
    lineage_key,
    new_build_id,
    new_session_id,
    pool_key,
    template_key,
)
from controlplane.loops import Applier, Garbage, Reality, Reaper, Scheduler
from controlplane.loops.reaper import ReaperTimes
from controlplane.model.actions import Limits
from controlplane.model.sandbox import Sandbox, Session
from controlplane.model.template import Build, Pool, Template
from controlplane.model.tenancy import Tenant
from controlplane.provisioning import Provisioning, ProvisionTimes
from controlplane.queue.port import JobName, QueueName
from controlplane.runtime.simulated import LogNormal, SimulatedAgent, SimulatedRuntime
from controlplane.runtime.simulated.commands import Outcome
from controlplane.store.port import ClaimRequest, ClaimResult, Leadership, Store
from controlplane.templates import Builder, BuildTimes

ACME = TenantId("acme")
SECRET = b"s" * 32


class Crash(BaseException):
    """The process is gone: nothing may catch it."""


class Crashes:
    """Counts calls over all wrapped objects, and dies at the ``at``-th: before it, or after it took effect."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.calls = 0

    def around(self, target: Any) -> Any:
        return _Wrapped(target, self)


class _Wrapped:
    def __init__(self, target: Any, crashes: Crashes) -> None:
        self._target = target
        self._crashes = crashes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        crashes = self._crashes

        @functools.wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            crashes.calls += 1
            dies = crashes.at is not None and crashes.calls >= crashes.at
            if dies and not crashes.after:
                raise Crash
            result = await found(*args, **kwargs)
            if dies:
                raise Crash
            return result

        return call


@dataclass
class NowQueue:
    """Jobs run as tasks of this process, once per id at a time; ``held`` keeps them from starting."""

    jobs: Mapping[str, Callable[[str], Awaitable[None]]] = field(default_factory=dict)
    held: bool = False
    put_ids: list[str] = field(default_factory=list)
    queues: dict[str, str] = field(default_factory=dict)
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    async def put(self, queue: QueueName, job: JobName, *args: str, job_id: str, timeout_s: float) -> bool:
        if job_id in self.running:
            return False
        self.put_ids.append(job_id)
        self.queues[job_id] = queue
        if not self.held:
            self.running[job_id] = asyncio.create_task(self._run(job, args[0], job_id, timeout_s))
        return True

    async def _run(self, job: str, argument: str, job_id: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.jobs[job](argument)
        except BaseException as error:
            self.errors.append(error)
        finally:
            del self.running[job_id]

    async def idle(self) -> None:
        while self.running:
            await asyncio.gather(*list(self.running.values()), return_exceptions=True)

    async def close(self) -> None:
        await self.idle()


class Plant:
    """``crashes``: wraps what the services see; the test itself looks at the store unhindered."""

    def __init__(
        self,
        store: Store,
        deployment: str,
        folder: Path,
        *,
        runtime: SimulatedRuntime | None = None,
        programs: Mapping[str, Outcome] | None = None,
        crashes: Crashes | None = None,
        limits: Limits | None = None,
        keep_superseded_s: float = 0.0,
        keep_unused_ref_s: float = 3600.0,
        young_s: float = 600.0,
        egress: Any = None,
        agents: AgentClient | None = None,
    ) -> None:
        self.store = store
        self.deployment = deployment
        self.runtime = runtime or SimulatedRuntime(start_s=0.0, deployment=deployment)
        self.agents: AgentClient = agents or SimulatedAgent(
            self.runtime.world, bind_latency=LogNormal(0.0), programs=programs
        )
        self.logs = FolderBuildLogs(folder / "logs")
        wrap = (crashes or Crashes()).around
        seen = {"store": wrap(store), "runtime": wrap(self.runtime), "agents": wrap(self.agents)}
        self.provisioning = Provisioning(
            **seen,
            deployment=deployment,
            secret=SECRET,
            egress=egress,
            times=ProvisionTimes(start_timeout_s=30.0, destroy_timeout_s=30.0, backoff_base_s=0.01, backoff_max_s=0.05),
        )
        self.builder = Builder(
            **seen,
            logs=self.logs,
            deployment=deployment,
            secret=SECRET,
            egress=egress,
            times=BuildTimes(start_timeout_s=30.0, heartbeat_s=0.05, backoff_base_s=0.01, backoff_max_s=0.05),
        )
        self.queue = NowQueue(
            jobs={
                "provision_sandbox": lambda key: self.provisioning.provision(SandboxId(key)),
                "retire_sandbox": lambda key: self.provisioning.retire(SandboxId(key)),
                "build_version": lambda key: self.builder.build(BuildId(key)),
            }
        )
        self.binder = Binder(store, self.agents, actor="scheduler")
        self.limits = limits or Limits()
        self.scheduler = self.make_scheduler("one")
        self.reality = Reality(store=store, runtime=self.runtime, agents=self.agents, grace_s=0.0)
        self.garbage = Garbage(
            store=store,
            runtime=self.runtime,
            logs=self.logs,
            egress=egress,
            keep_superseded_s=keep_superseded_s,
            keep_unused_ref_s=keep_unused_ref_s,
            young_s=young_s,
        )
        self.reaper = Reaper(
            store=store,
            agents=self.agents,
            binder=self.binder,
            reality=self.reality,
            garbage=self.garbage,
            leads=lambda: True,
            times=ReaperTimes(binding_s=0.0),
        )

    def make_scheduler(self, holder: str, *, lease_s: float = 30.0) -> Scheduler:
        return Scheduler(
            store=self.store,
            applier=Applier(self.store, self.queue, runtime_name="simulated"),
            binder=self.binder,
            forecast=Steady(),
            limits=self.limits,
            holder=holder,
            lease_s=lease_s,
            tick_s=0.2,
        )

    async def leadership(self) -> Leadership:
        found = await self.store.lead("one", 30.0)
        assert found is not None
        return found

    async def tick(self) -> None:
        """One plan applied, and all its jobs done."""
        await self.scheduler.tick(await self.leadership())
        await self.queue.idle()

    async def settle(self, rounds: int = 60) -> None:
        """Ticks until the plan is empty and nothing is in flight."""
        for _ in range(rounds):
            made, observed = await self.scheduler.tick(await self.leadership())
            in_flight = any(s.state in ("building", "draining") for s in observed.sandboxes)
            soon = made.wake_at is not None and made.wake_at < observed.now + 1
            if not (made.actions or in_flight or self.queue.running or observed.building_lineages or soon):
                return
            await self.queue.idle()
            await asyncio.sleep(0.01)
        raise AssertionError(f"no rest: {made.actions} {self.queue.errors}")

    async def add_template(self, name: str = "demo", **changes: Any) -> TemplateKey:
        with contextlib.suppress(Exception):
            await self.store.put_tenant(Tenant(id=ACME))
        key = template_key(ACME, name)
        await self.store.put_template(replace(Template(key=key, tenant=ACME, name=name), **changes))
        return key

    async def add_pool(self, name: str = "demo", **changes: Any) -> PoolKey:
        pool = Pool(key=pool_key(ACME, name), tenant=ACME, name=name, template=template_key(ACME, name))
        return (await self.store.put_pool(replace(pool, **changes))).key

    async def add_demo(self, name: str = "demo", **changes: Any) -> PoolKey:
        """A template, built, and its pool, filled."""
        template = await self.add_template(name)
        await self.store.reset_lineage(lineage_key(template, None))
        pool = await self.add_pool(name, **changes)
        await self.settle()
        return pool

    async def new_build(self, template: TemplateKey) -> BuildId:
        declared = await self.store.get_template(template)
        build = Build(
            id=new_build_id(),
            lineage=lineage_key(template, None),
            template=template,
            tenant=declared.tenant,
            revision=declared.revision,
        )
        assert await self.store.create_build(build, (await self.leadership()).fence)
        return build.id

    async def claim(self, pool: PoolKey, *, wait_s: float = 30.0, **changes: Any) -> ClaimResult:
        request = ClaimRequest(
            session=new_session_id(), tenant=ACME, api_key="k", pool=pool, ttl_s=600.0, wait_s=wait_s
        )
        return await self.store.claim(replace(request, **changes))

    async def attach(self, pool: PoolKey, **changes: Any) -> Session:
        result = await self.claim(pool, **changes)
        assert result.session is not None
        return await self.binder.bind(result.session)

    async def sandboxes(self, pool: PoolKey, *states: str) -> list[Sandbox]:
        found = await self.store.list_sandboxes(pool)
        return [sandbox for sandbox in found if not states or sandbox.state in states]

    async def running(self) -> set[str]:
        return {found.id for found in await self.runtime.list_sandboxes()}

    async def current(self, pool: PoolKey) -> VersionId:
        declared = await self.store.get_pool(pool)
        lineage = await self.store.get_lineage(lineage_key(declared.template, declared.ref))
        assert lineage is not None and lineage.current is not None
        return lineage.current


async def until(condition: Callable[[], Awaitable[Any]], within_s: float = 20.0) -> Any:
    """The first true value of ``condition``, asked again and again."""
    end = asyncio.get_running_loop().time() + within_s
    while True:
        value = await condition()
        if value:
            return value
        assert asyncio.get_running_loop().time() < end, "the condition did not come true in time"
        await asyncio.sleep(0.01)
