"""Whatever happens in whatever order: the bounds hold in every plan, and every world comes to rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from controlplane.ids import PoolKey
from controlplane.model.actions import FailWaiters, Limits, Plan, Provision, Retire
from controlplane.model.resources import MIB, Budget, Resources
from tests.planning.world import World

SIZES = [Resources(memory_bytes=size * MIB, cpu_cores=0.5, pids=100) for size in (100, 200, 300)]
NAMES = ["a", "b", "c", "d"]


class PoolMachine(RuleBasedStateMachine):
    """Users, workers, faults and the scheduler take turns in any order."""

    pools = Bundle("pools")

    @initialize(
        memory=st.sampled_from([None, 600, 1500]),
        count=st.sampled_from([None, 1, 3, 8]),
        starts=st.integers(1, 6),
        retires=st.integers(1, 6),
        share=st.sampled_from([0.0, 0.5, 1.0]),
    )
    def begin(self, memory: int | None, count: int | None, starts: int, retires: int, share: float) -> None:
        budget = Budget(memory_bytes=None if memory is None else memory * MIB, sandboxes=count)
        self.world = World(
            limits=Limits(
                budget=budget,
                max_starts_in_flight=starts,
                max_retires_in_flight=retires,
                max_failures=3,
                ready_floor_share=share,
            )
        )
        self.lowered: set[PoolKey] = set()

    @rule(
        target=pools,
        name=st.sampled_from(NAMES),
        least=st.integers(0, 4),
        extra=st.integers(0, 4),
        size=st.sampled_from(SIZES),
        adhoc=st.booleans(),
        strict=st.booleans(),
    )
    def put_pool(self, name: str, least: int, extra: int, size: Resources, adhoc: bool, strict: bool) -> str:
        known = self.world.pools.get(PoolKey(f"acme/{name}"))
        most = max(1, least + extra)
        if known is not None and not known.deleting:
            if most < known.max_total:
                self.lowered.add(known.key)
            self.world.change_pool(known.key, min_ready=least, max_total=most, resources=size)
        elif known is None:
            key = self.world.add_pool(
                name, min_ready=0 if adhoc else least, max_total=most, resources=size, built=False, adhoc=adhoc
            )
            # What an earlier pool of that name left behind may be more than the new one allows.
            self.lowered.add(key)
            (self.world.strict.add if strict else self.world.strict.discard)(self.world.lineage_of(key))
        return f"acme/{name}"

    @rule(pool=pools, ready=st.one_of(st.none(), st.integers(0, 5)))
    def pin(self, pool: PoolKey, ready: int | None) -> None:
        if pool in self.world.pools:
            self.world.change_pool(pool, pinned_ready=ready)

    @rule(pool=pools)
    def attach(self, pool: PoolKey) -> None:
        if pool in self.world.pools and not self.world.pools[pool].deleting:
            self.world.claim(pool)

    @rule(pool=pools)
    def give_up_waiting(self, pool: PoolKey) -> None:
        self.world.waiting.pop(pool, None)

    @rule(pool=pools)
    def end_a_session(self, pool: PoolKey) -> None:
        for sandbox in self.world.of(pool, "claimed")[:1]:
            self.world.end_session(sandbox.id)

    @rule(pool=consumes(pools))
    def delete_pool(self, pool: PoolKey) -> None:
        if pool in self.world.pools:
            self.world.change_pool(pool, deleting=True)
            self.world.waiting.pop(pool, None)

    @rule(pool=pools)
    def change_template(self, pool: PoolKey) -> None:
        if pool in self.world.pools:
            self.world.change_template(pool)

    @rule()
    def a_build_succeeds(self) -> None:
        for lineage in sorted(self.world.building)[:1]:
            self.world.publish(lineage, self.world.lineages[lineage].template) if lineage in self.world.lineages else (
                self.world.publish(lineage, lineage.partition("@")[0])  # type: ignore[arg-type]
            )

    @rule()
    def a_build_fails(self) -> None:
        for lineage in sorted(self.world.building & set(self.world.lineages))[:1]:
            self.world.building.discard(lineage)
            known = self.world.lineages[lineage]
            self.world.lineages[lineage] = replace(
                known, failures=known.failures + 1, next_attempt_at=self.world.now + 5, last_error="exit 1"
            )

    @rule(which=st.integers(0, 20), fails=st.booleans())
    def a_start_ends(self, which: int, fails: bool) -> None:
        building = [s for s in self.world.sandboxes.values() if s.state == "building"]
        if building:
            chosen = building[which % len(building)].id
            self.world.start_fails(chosen) if fails else self.world.becomes_ready(chosen)

    @rule(which=st.integers(0, 20))
    def one_is_gone(self, which: int) -> None:
        draining = [s for s in self.world.sandboxes.values() if s.state == "draining"]
        if draining:
            self.world.gone(draining[which % len(draining)].id)

    @rule(which=st.integers(0, 20))
    def one_dies(self, which: int) -> None:
        living = [s for s in self.world.sandboxes.values() if s.state in ("ready", "claimed")]
        if living:
            self.world.change(living[which % len(living)].id, state="failed", reason="gone")

    @rule(seconds=st.sampled_from([1.0, 30.0, 700.0, 9_900.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def plan_and_apply(self) -> None:
        claimed = {s.id for s in self.world.sandboxes.values() if s.state == "claimed"}
        before = Counter(s.state for s in self.world.sandboxes.values())
        made = self.world.plan()
        self._check_bounds(made, claimed, before)
        self.world.apply(made)
        self._check_room(made)

    def _check_bounds(self, made: Plan, claimed: set[str], before: Counter[str]) -> None:
        limits = self.world.limits
        starts = sum(a.count for a in made.actions if isinstance(a, Provision))
        fresh = [
            a for a in made.actions if isinstance(a, Retire) and self.world.sandboxes[a.sandbox].state != "draining"
        ]
        retires = [a.sandbox for a in made.actions if isinstance(a, Retire)]
        assert len(retires) == len(set(retires))
        assert not claimed & set(retires)
        assert starts == 0 or before["building"] + starts <= limits.max_starts_in_flight
        assert not fresh or before["draining"] + len(fresh) <= limits.max_retires_in_flight
        for action in made.actions:
            if isinstance(action, FailWaiters):
                assert self.world.waiting.get(action.pool)

    def _check_room(self, made: Plan) -> None:
        budget = self.world.limits.budget
        started = {a.pool for a in made.actions if isinstance(a, Provision)}
        for pool in started:
            assert len(self.world.of(pool)) <= self.world.pools[pool].max_total
        if started:
            used = sum(s.memory_bytes for s in self.world.sandboxes.values())
            assert budget.memory_bytes is None or used <= budget.memory_bytes
            assert budget.sandboxes is None or len(self.world.sandboxes) <= budget.sandboxes

    @invariant()
    def planning_is_repeatable(self) -> None:
        assert self.world.plan() == self.world.plan()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        made = self.world.settle(rounds=120)
        budget = self.world.limits.budget
        for decision in made.decisions:
            pool = self.world.pools[decision.pool]
            lineage = self.world.lineages.get(self.world.lineage_of(pool.key))
            if pool.deleting or lineage is None or lineage.failures or lineage.provision_failures:
                continue
            # Never more than wanted; and all that is wanted, unless a limit is named.
            assert decision.ready <= decision.target_ready
            if budget.memory_bytes is None and budget.sandboxes is None:
                assert decision.ready == decision.target_ready
            elif decision.ready < decision.target_ready:
                assert "budget" in " ".join(decision.reasons)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
