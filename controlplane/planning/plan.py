"""The plan: what to start, retire, build and give up, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.ids import PoolKey
from controlplane.model.actions import Action, Demand, Limits, Observed, Plan, PoolDecision, Provision, Retire
from controlplane.model.sandbox import Sandbox
from controlplane.planning.allocate import Allocation
from controlplane.planning.assess import Wants, ask_for_unused, check_removal, check_ways, settle_target, surplus
from controlplane.planning.ledger import Ledger
from controlplane.planning.view import NEVER, Grouped, PoolView, group

_EVICTED, _BROKEN, _USELESS, _SURPLUS = range(4)


def plan(observed: Observed, limits: Limits, demand: Mapping[PoolKey, Demand], now: float) -> Plan:
    """Decide what to do about what was observed. Pure and linear in pools and sandboxes.

    Applied and planned again, it converges: a pool at its target gets no action. Bounds that hold in every
    plan: live + terminating + in flight never exceed a pool's max_total, nor all of them the budget; starts
    and retirements in flight are limited; a claimed sandbox is never touched.
    """
    grouped = group(observed, limits, now)
    ledger = Ledger(limits.budget, grouped.used, grouped.freeing)
    wants = Wants(wake_at=grouped.wake_at)
    leaving = _Leaving(ledger)
    decisions = _assess_pools(observed, limits, demand, now, grouped, ledger, wants, leaving)
    ask_for_unused(observed, limits, now, wants)
    slots = limits.max_starts_in_flight - grouped.building
    allocation = Allocation(list(grouped.views.values()), ledger, limits, slots, leaving.evict)
    if ledger.overdrawn():
        allocation.give_back()
    allocation.serve()
    actions: list[Action] = list(_provisions(grouped.views))
    actions += leaving.actions(limits.max_retires_in_flight - grouped.draining)
    actions += _again(grouped)
    actions += [*wants.builds.values(), *wants.failing, *wants.removals]
    wake_at = None if wants.wake_at == NEVER else wants.wake_at
    return Plan(actions=tuple(actions), decisions=tuple(decide() for decide in decisions), wake_at=wake_at)


class _Leaving:
    """Retirements in the order in which the limit on them is spent."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_rank: tuple[list[Retire], ...] = ([], [], [], [])

    def add(self, rank: int, view: PoolView | None, sandbox: Sandbox, reason: str) -> None:
        self._ledger.will_free(sandbox)
        if view is not None:
            view.coming += 1
            if len(view.reasons) < 8:
                view.reasons.append(f"retires {sandbox.id}: {reason}")
        self._by_rank[rank].append(Retire(sandbox=sandbox.id, pool=sandbox.pool, reason=reason))

    def evict(self, view: PoolView, sandbox: Sandbox, reason: str) -> None:
        self.add(_EVICTED, view, sandbox, reason)

    def actions(self, at_most: int) -> list[Retire]:
        every = [retire for rank in self._by_rank for retire in rank]
        return every[: max(0, at_most)]


def _assess_pools(
    observed: Observed,
    limits: Limits,
    demand: Mapping[PoolKey, Demand],
    now: float,
    grouped: Grouped,
    ledger: Ledger,
    wants: Wants,
    leaving: _Leaving,
) -> list[_Decision]:
    for sandbox, why in grouped.foreign:
        leaving.add(_USELESS, grouped.views.get(sandbox.pool), sandbox, why)
    decisions = []
    live = observed.building_lineages
    for key, view in grouped.views.items():
        decisions.append(_Decision(view))
        view.room = view.pool.max_total - view.total
        view.coming += view.draining
        settle_target(view, demand.get(key))
        check_ways(view, limits, ledger, view.lineage_key in live, now, wants)
        check_removal(view, limits, now, wants)
        for sandbox in view.failed:
            leaving.add(_BROKEN, view, sandbox, f"failed: {sandbox.reason}")
        for sandbox in view.stuck:
            leaving.add(_BROKEN, view, sandbox, f"stuck at {sandbox.step!r} while starting")
        for sandbox in view.useless_starting:
            leaving.add(_USELESS, view, sandbox, "the pool now uses another template or ref")
        for sandbox, why in view.useless:
            leaving.add(_USELESS, view, sandbox, why)
        if view.fresh or view.starting or view.old or view.starting_old:
            for sandbox, why in surplus(view):
                leaving.add(_SURPLUS, view, sandbox, why)
    return decisions


class _Decision:
    """The counts as observed, before the plan spends the view, and the reasons, after it did."""

    __slots__ = ("building", "ready", "view")

    def __init__(self, view: PoolView) -> None:
        self.view = view
        self.ready = len(view.fresh) + len(view.old) + len(view.useless)
        self.building = sum(len(held) for held in (view.starting, view.starting_old, view.useless_starting, view.stuck))

    def __call__(self) -> PoolDecision:
        view = self.view
        if view.starts:
            urgent = f", {view.urgent_starts} for waiting sessions" if view.urgent_starts else ""
            view.reasons.append(f"starts {view.starts}{urgent}")
        return PoolDecision(
            pool=view.key,
            target_ready=view.target,
            bound_by=view.bound_by,
            ready=self.ready,
            building=self.building,
            claimed=view.claimed,
            draining=view.draining,
            waiting=view.waiting,
            reasons=tuple(view.reasons),
        )


def _provisions(views: Mapping[PoolKey, PoolView]) -> list[Provision]:
    """Starts for waiting sessions come first."""
    urgent = [
        Provision(pool=view.key, count=view.urgent_starts, reason="sessions wait", urgent=True)
        for view in views.values()
        if view.urgent_starts
    ]
    refills = [
        Provision(pool=view.key, count=view.starts - view.urgent_starts, reason=f"below {view.target} ready")
        for view in views.values()
        if view.starts > view.urgent_starts
    ]
    return urgent + refills


def _again(grouped: Grouped) -> list[Retire]:
    """Retirements that did not end in time are asked for again; they are in flight already, so not limited."""
    held = [sandbox for view in grouped.views.values() for sandbox in view.again]
    return [
        Retire(sandbox=sandbox.id, pool=sandbox.pool, reason=f"still draining at {sandbox.step!r} past its time")
        for sandbox in (*held, *grouped.foreign_again)
    ]
