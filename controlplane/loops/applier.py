"""Making a plan true: records first, under the leader's fence, then jobs.

A crash in between leaves a record without a job; every pass looks for such records and queues them again,
which is harmless when a job of that id lives.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from controlplane.errors import Conflict, NotFound
from controlplane.ids import BuildId, PoolKey, SandboxId, TemplateKey, lineage_key, new_build_id, new_sandbox_id
from controlplane.model.actions import (
    Action,
    BuildVersion,
    FailWaiters,
    Observed,
    Plan,
    Provision,
    RemovePool,
    Retire,
)
from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Build, Lineage, Pool
from controlplane.queue.port import Queue, QueueName
from controlplane.retrying import backoff_s
from controlplane.store.port import NewSandbox, Store

log = logging.getLogger(__name__)

_BUILD_JOB_S = 12 * 3600.0
_MOST_PUTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTimes:
    """Seconds. ``requeue_s``: how often a record in flight is checked for a job that lives."""

    start_timeout_s: float = 120.0
    retire_timeout_s: float = 60.0
    backoff_base_s: float = 2.0
    backoff_max_s: float = 300.0
    requeue_s: float = 2.0


class Applier:
    """``runtime_name`` is noted on the records of sandboxes."""

    def __init__(self, store: Store, queue: Queue, *, runtime_name: str, times: ApplyTimes | None = None) -> None:
        self._store = store
        self._queue = queue
        self._runtime_name = runtime_name
        self._times = times or ApplyTimes()
        self._put_at: dict[str, float] = {}

    async def apply(self, plan: Plan, observed: Observed, fence: int) -> None:
        """Raises Conflict ``fenced`` once another leads; what was done until then stands."""
        if plan.actions:
            pools = {pool.key: pool for pool in observed.pools}
            named = {action.sandbox for action in plan.actions if isinstance(action, Retire)}
            sandboxes = {sandbox.id: sandbox for sandbox in observed.sandboxes if sandbox.id in named}
            for action in plan.actions:
                await self._apply(action, observed, pools, sandboxes, fence)
        await self._requeue(observed)

    async def _apply(
        self,
        action: Action,
        observed: Observed,
        pools: dict[PoolKey, Pool],
        sandboxes: dict[SandboxId, Sandbox],
        fence: int,
    ) -> None:
        match action:
            case Provision():
                await self._provision(action, observed, pools[action.pool], fence)
            case Retire():
                await self._retire(action, sandboxes[action.sandbox], observed, fence)
            case BuildVersion():
                await self._build(action, fence)
            case FailWaiters():
                await self._store.end_waiting(action.pool, action.reason, action.detail, "scheduler")
            case RemovePool():
                await self._store.remove_pool(action.pool, fence)

    async def _provision(self, action: Provision, observed: Observed, pool: Pool, fence: int) -> None:
        lineage = _lineage_of(pool, observed)
        if lineage is None or lineage.current is None:
            return
        for _ in range(action.count):
            sandbox = Sandbox(
                id=new_sandbox_id(),
                pool=pool.key,
                pool_uid=pool.uid,
                tenant=pool.tenant,
                lineage=lineage.key,
                version=lineage.current,
                revision=lineage.current_revision,
                state="building",
                runtime=self._runtime_name,
                memory_bytes=pool.resources.memory_bytes,
                cpu_cores=pool.resources.cpu_cores,
                pids=pool.resources.pids,
                disk_bytes=pool.resources.disk_bytes,
                reason=action.reason,
            )
            # The job notes progress and moves the deadline; this one covers the time until it starts.
            new = NewSandbox(sandbox=sandbox, count_limit=pool.max_total, deadline_s=self._times.start_timeout_s * 2)
            if not await self._store.create_sandbox(new, fence):
                return
            await self._put_provision(sandbox, observed.now, urgent=action.urgent)

    async def _retire(self, action: Retire, sandbox: Sandbox, observed: Observed, fence: int) -> None:
        if sandbox.state == "building" and sandbox.step != "queued" and action.reason.startswith("stuck"):
            await self._note_stuck(sandbox, observed, action.reason)
        try:
            drains = sandbox.state == "draining" or await self._store.drain_sandbox(
                sandbox.id, action.reason, "scheduler", fence, True
            )
        except (Conflict, NotFound) as error:
            if error.code == "fenced":
                raise
            log.info("sandbox %s moved on before it could be retired: %s", sandbox.id, error.message)
            return
        if drains:
            await self._put_retire(sandbox.id, observed.now)

    async def _note_stuck(self, sandbox: Sandbox, observed: Observed, reason: str) -> None:
        """A start that hangs is a failed start: else a template that always hangs would be tried for ever."""
        lineage = observed.lineages.get(sandbox.lineage)
        failures = (lineage.provision_failures if lineage is not None else 0) + 1
        wait_s = backoff_s(failures, self._times.backoff_base_s, self._times.backoff_max_s)
        try:
            await self._store.note_provision(sandbox.lineage, False, reason, wait_s)
        except NotFound:
            return

    async def _build(self, action: BuildVersion, fence: int) -> None:
        try:
            template = await self._store.get_template(TemplateKey(action.lineage.partition("@")[0]))
        except NotFound:
            return
        build = Build(
            id=new_build_id(),
            lineage=action.lineage,
            template=template.key,
            tenant=template.tenant,
            revision=template.revision,
        )
        if await self._store.create_build(build, fence):
            await self._put_build(build.id)

    async def _requeue(self, observed: Observed) -> None:
        """Every record in flight has a job, put again now and then in case its worker died."""
        now, due, in_flight = observed.now, [], set()
        for sandbox in observed.sandboxes:
            if sandbox.state == "building" or sandbox.state == "draining":
                job = _job_id(sandbox)
                in_flight.add(job)
                if self._put_at.get(job, 0.0) + self._times.requeue_s <= now:
                    due.append((self._put_at.get(job, 0.0), sandbox))
        due.sort(key=lambda entry: (entry[0], entry[1].id))
        for _, sandbox in due[:_MOST_PUTS]:
            if sandbox.state == "building":
                await self._put_provision(sandbox, now, urgent=bool(observed.waiting.get(sandbox.pool)))
            else:
                await self._put_retire(sandbox.id, now)
        live = [lineage.build for lineage in observed.lineages.values() if lineage.build is not None]
        for build in live:
            job = f"build-{build}"
            in_flight.add(job)
            if self._put_at.get(job, 0.0) + self._times.requeue_s <= now:
                self._put_at[job] = now
                await self._put_build(build)
        self._put_at = {job: at for job, at in self._put_at.items() if job in in_flight or at + 60 > now}

    async def _put_provision(self, sandbox: Sandbox, now: float, *, urgent: bool) -> None:
        job_id = f"provision-{sandbox.id}"
        self._put_at[job_id] = now
        queue: QueueName = "urgent" if urgent else "refill"
        await self._queue.put(
            queue,
            "provision_sandbox",
            sandbox.id,
            job_id=job_id,
            timeout_s=self._times.start_timeout_s * 2 + 60,
        )

    async def _put_retire(self, sandbox: SandboxId, now: float) -> None:
        job_id = f"retire-{sandbox}"
        self._put_at[job_id] = now
        await self._queue.put(
            "retire", "retire_sandbox", sandbox, job_id=job_id, timeout_s=self._times.retire_timeout_s * 2 + 60
        )

    async def _put_build(self, build: BuildId) -> None:
        await self._queue.put("build", "build_version", build, job_id=f"build-{build}", timeout_s=_BUILD_JOB_S)


def _job_id(sandbox: Sandbox) -> str:
    """Derived from the record, so that putting it again makes no second job."""
    return f"{'provision' if sandbox.state == 'building' else 'retire'}-{sandbox.id}"


def _lineage_of(pool: Pool, observed: Observed) -> Lineage | None:
    return observed.lineages.get(lineage_key(pool.template, pool.ref))
