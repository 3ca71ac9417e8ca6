"""A small world that a plan is applied to: what the store, the workers and the users would do, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controlplane.ids import LineageKey, PoolKey, SandboxId, TemplateKey, TenantId, VersionId, lineage_key
from controlplane.model.actions import (
    BuildVersion,
    Demand,
    FailWaiters,
    Limits,
    Observed,
    Plan,
    Provision,
    RemovePool,
    Retire,
)
from controlplane.model.resources import MIB, Resources
from controlplane.model.sandbox import Sandbox, SandboxState
from controlplane.model.template import Lineage, Pool
from controlplane.planning import plan

START_S = 60.0
SMALL = Resources(memory_bytes=100 * MIB, cpu_cores=0.1, pids=100)


def key(name: str) -> PoolKey:
    return PoolKey(f"acme/{name}")


@dataclass
class World:
    """``limits`` may be changed between plans. Time moves only when told to."""

    limits: Limits = field(default_factory=Limits)
    now: float = 1_000_000.0
    pools: dict[PoolKey, Pool] = field(default_factory=dict)
    sandboxes: dict[SandboxId, Sandbox] = field(default_factory=dict)
    lineages: dict[LineageKey, Lineage] = field(default_factory=dict)
    revisions: dict[LineageKey, int] = field(default_factory=dict)
    strict: set[LineageKey] = field(default_factory=set)
    waiting: dict[PoolKey, int] = field(default_factory=dict)
    last_used_at: dict[PoolKey, float] = field(default_factory=dict)
    building: set[LineageKey] = field(default_factory=set)
    demand: dict[PoolKey, Demand] = field(default_factory=dict)
    max_age_s: float = 10_000.0
    failed_waiters: list[FailWaiters] = field(default_factory=list)
    numbers: int = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def add_pool(
        self,
        name: str,
        *,
        min_ready: int = 1,
        max_total: int = 5,
        resources: Resources = SMALL,
        built: bool = True,
        adhoc: bool = False,
    ) -> PoolKey:
        template = TemplateKey(f"acme/{name}")
        pool = Pool(
            key=key(name),
            tenant=TenantId("acme"),
            name=name,
            template=template,
            resources=resources,
            min_ready=min_ready,
            max_total=max_total,
            adhoc=adhoc,
            uid=f"uid-{self.number()}",
            created_at=self.now,
        )
        self.pools[pool.key] = pool
        lineage = lineage_key(template, None)
        self.revisions.setdefault(lineage, 1)
        if built and lineage not in self.lineages:
            self.publish(lineage, template)
        return pool.key

    def lineage_of(self, pool: PoolKey) -> LineageKey:
        return lineage_key(self.pools[pool].template, None)

    def publish(self, lineage: LineageKey, template: TemplateKey) -> None:
        self.building.discard(lineage)
        version = VersionId(f"v-{self.number()}")
        known = self.lineages.get(lineage, Lineage(key=lineage, template=template))
        self.lineages[lineage] = replace(
            known, current=version, current_revision=self.revisions[lineage], failures=0, provision_failures=0
        )

    def change_template(self, pool: PoolKey) -> None:
        self.revisions[self.lineage_of(pool)] += 1

    def change_pool(self, pool: PoolKey, **changes: object) -> None:
        self.pools[pool] = replace(self.pools[pool], **changes)  # type: ignore[arg-type]

    def change(self, sandbox: SandboxId, **changes: object) -> None:
        self.sandboxes[sandbox] = replace(self.sandboxes[sandbox], state_since=self.now, **changes)  # type: ignore[arg-type]

    def of(self, pool: PoolKey, *states: SandboxState) -> list[Sandbox]:
        return [s for s in self.sandboxes.values() if s.pool == pool and (not states or s.state in states)]

    def claim(self, pool: PoolKey) -> str:
        """Attach: the newest fit one, else wait."""
        self.last_used_at[pool] = self.now
        lineage = self.lineages.get(self.lineage_of(pool))
        strict = self.lineage_of(pool) in self.strict
        stale = lineage is None or lineage.current_revision < self.revisions[self.lineage_of(pool)]
        ready = [
            s
            for s in self.of(pool, "ready")
            if s.pool_uid == self.pools[pool].uid
            and (s.expires_at or 0) - self.now >= self.limits.min_remaining_s
            and not (strict and (stale or lineage is None or s.version != lineage.current))
        ]
        if not ready:
            self.waiting[pool] = self.waiting.get(pool, 0) + 1
            return "waiting"
        best = max(ready, key=lambda s: (lineage is not None and s.version == lineage.current, s.ready_at or 0))
        self.change(best.id, state="claimed")
        return "claimed"

    def end_session(self, sandbox: SandboxId) -> None:
        self.change(sandbox, state="draining", deadline_at=self.now + START_S)

    def becomes_ready(self, sandbox: SandboxId) -> None:
        pool = self.sandboxes[sandbox].pool
        known = self.pools.get(pool)
        self.change(sandbox, ready_at=self.now, expires_at=self.now + self.max_age_s, deadline_at=None)
        if known is not None and self.waiting.get(pool) and known.uid == self.sandboxes[sandbox].pool_uid:
            self.waiting[pool] -= 1
            self.change(sandbox, state="claimed")
        else:
            self.change(sandbox, state="ready")

    def start_fails(self, sandbox: SandboxId) -> None:
        lineage = self.sandboxes[sandbox].lineage
        self.change(sandbox, state="failed", reason="no space left")
        if lineage in self.lineages:
            known = self.lineages[lineage]
            self.lineages[lineage] = replace(
                known,
                provision_failures=known.provision_failures + 1,
                next_attempt_at=self.now + 10,
                last_error="no space left",
            )

    def gone(self, sandbox: SandboxId) -> None:
        del self.sandboxes[sandbox]

    def observe(self) -> Observed:
        return Observed(
            now=self.now,
            pools=tuple(self.pools.values()),
            sandboxes=tuple(self.sandboxes.values()),
            lineages=dict(self.lineages),
            revisions=dict(self.revisions),
            strict=frozenset(self.strict),
            waiting={pool: count for pool, count in self.waiting.items() if count},
            last_used_at=dict(self.last_used_at),
            building_lineages=frozenset(self.building),
        )

    def plan(self) -> Plan:
        demand: Mapping[PoolKey, Demand] = self.demand
        return plan(self.observe(), self.limits, demand, self.now)

    def tick(self) -> Plan:
        made = self.plan()
        self.apply(made)
        return made

    def apply(self, made: Plan) -> None:
        for action in made.actions:
            match action:
                case Provision():
                    self._provision(action)
                case Retire():
                    if self.sandboxes[action.sandbox].state != "draining":
                        assert self.sandboxes[action.sandbox].state in ("building", "ready", "failed")
                    self.change(action.sandbox, state="draining", deadline_at=self.now + START_S)
                case BuildVersion():
                    assert action.lineage not in self.building
                    self.building.add(action.lineage)
                case FailWaiters():
                    self.failed_waiters.append(action)
                    self.waiting[action.pool] = 0
                case RemovePool():
                    assert not self.of(action.pool)
                    del self.pools[action.pool]

    def _provision(self, action: Provision) -> None:
        pool = self.pools[action.pool]
        lineage = self.lineages[self.lineage_of(action.pool)]
        assert lineage.current is not None
        for _ in range(action.count):
            sandbox = Sandbox(
                id=SandboxId(f"sb-{self.number()}"),
                pool=pool.key,
                pool_uid=pool.uid,
                tenant=pool.tenant,
                lineage=lineage.key,
                version=lineage.current,
                revision=lineage.current_revision,
                state="building",
                runtime="model",
                memory_bytes=pool.resources.memory_bytes,
                cpu_cores=pool.resources.cpu_cores,
                pids=pool.resources.pids,
                disk_bytes=pool.resources.disk_bytes,
                created_at=self.now,
                state_since=self.now,
                deadline_at=self.now + START_S,
            )
            self.sandboxes[sandbox.id] = sandbox

    def finish_everything(self) -> None:
        """Workers end all that is in flight, well."""
        for sandbox in list(self.sandboxes.values()):
            if sandbox.state == "building":
                self.becomes_ready(sandbox.id)
            elif sandbox.state == "draining":
                self.gone(sandbox.id)
        for lineage in list(self.building):
            self.publish(lineage, TemplateKey(lineage.partition("@")[0]))

    def settle(self, rounds: int = 60) -> Plan:
        """Plan and work until nothing is left to do; fails if that never happens."""
        for _ in range(rounds):
            made = self.tick()
            in_flight = self.building or any(s.state in ("building", "draining") for s in self.sandboxes.values())
            if not made.actions and not in_flight:
                return made
            self.finish_everything()
            self.now += 1
        raise AssertionError(f"no rest after {rounds} rounds; the last plan was {self.plan().actions}")

    def decision(self, made: Plan, pool: PoolKey) -> str:
        return " | ".join(next(d for d in made.decisions if d.pool == pool).reasons)
