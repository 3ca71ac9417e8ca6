"""What one pool wants, before anything is compared with other pools: its target and what is in its way."""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.ids import LineageKey
from controlplane.model.actions import BuildVersion, Demand, FailWaiters, Limits, Observed, RemovePool
from controlplane.model.sandbox import Sandbox
from controlplane.planning.ledger import Ledger
from controlplane.planning.view import NEVER, PoolView


@dataclass(slots=True)
class Wants:
    """What the pools ask for together; filled pool by pool. ``builds`` keeps one request a lineage."""

    builds: dict[LineageKey, BuildVersion] = field(default_factory=dict)
    removals: list[RemovePool] = field(default_factory=list)
    failing: list[FailWaiters] = field(default_factory=list)
    wake_at: float = NEVER

    def wake(self, at: float) -> None:
        if at < self.wake_at:
            self.wake_at = at


def settle_target(view: PoolView, demand: Demand | None) -> None:
    """How many ready sandboxes the pool should have, and what decided it."""
    pool = view.pool
    if pool.deleting:
        view.target, view.floor, view.bound_by = 0, 0, "deleting"
        return
    if pool.pinned_ready is not None:
        target, bound_by = pool.pinned_ready, "pinned"
    elif demand is not None and demand.ready > pool.min_ready:
        target, bound_by = demand.ready, demand.source
    else:
        target, bound_by = pool.min_ready, "min_ready"
    view.in_use = target > 0 or view.waiting > 0
    most = max(0, pool.max_total - view.claimed)
    if target > most:
        target, bound_by = most, "max_total"
    view.target, view.bound_by = target, bound_by
    view.floor = min(target, pool.min_ready if pool.pinned_ready is None else pool.pinned_ready)


def check_ways(view: PoolView, limits: Limits, ledger: Ledger, building: bool, now: float, wants: Wants) -> None:
    """Whether sandboxes of the pool can be started at all now, what has to be built, who waits in vain."""
    if view.pool.deleting:
        view.can_start = False
        return
    hopeless = _check_build(view, limits, building, now, wants) if view.in_use and view.stale else None
    hopeless = _check_start(view, limits, ledger, now, wants) or hopeless
    if hopeless and view.waiting:
        wants.failing.append(FailWaiters(pool=view.key, reason=hopeless[0], detail=hopeless[1]))


def _check_build(view: PoolView, limits: Limits, building: bool, now: float, wants: Wants) -> tuple[str, str] | None:
    """Ask for a build of the lineage where one is due; why nobody can be served, if that is so."""
    lineage = view.lineage
    servable = view.version is not None and not view.strict
    if building:
        view.reasons.append("a version is being built")
        return None
    if lineage is not None and lineage.failures >= limits.max_failures:
        error = lineage.last_error or "unknown error"
        view.reasons.append(f"building it failed {lineage.failures} times, no further attempt by itself: {error}")
        return None if servable else ("template_failed", error)
    if lineage is not None and lineage.failures and now < lineage.next_attempt_at:
        wants.wake(lineage.next_attempt_at)
        view.reasons.append(f"building it failed {lineage.failures} times, backing off: {lineage.last_error}")
        return None
    why = "no version is built yet" if view.version is None else f"template is at revision {view.wanted_revision}"
    if view.lineage_key not in wants.builds:
        wants.builds[view.lineage_key] = BuildVersion(lineage=view.lineage_key, reason=why)
    view.reasons.append(why)
    return None


def _check_start(view: PoolView, limits: Limits, ledger: Ledger, now: float, wants: Wants) -> tuple[str, str] | None:
    """Set ``can_start``; why nobody can ever be served as things are, if that is so."""
    lineage = view.lineage
    if lineage is None or view.version is None or (view.strict and view.stale):
        return None
    if not ledger.fits_ever(view.pool.resources):
        view.reasons.append("one sandbox of this size is larger than the whole budget")
        return "capacity", "One sandbox of this size is larger than the budget of the deployment."
    if lineage.provision_failures >= limits.max_failures:
        error = lineage.last_error or "unknown error"
        view.reasons.append(f"{lineage.provision_failures} sandboxes in a row did not become ready: {error}")
        return "template_failed", error
    if lineage.provision_failures and now < lineage.next_attempt_at:
        wants.wake(lineage.next_attempt_at)
        view.reasons.append(f"backing off after {lineage.provision_failures} failed starts: {lineage.last_error}")
        return None
    view.can_start = True
    view.probing = lineage.provision_failures > 0
    return None


def check_removal(view: PoolView, limits: Limits, now: float, wants: Wants) -> None:
    """An empty pool that is being deleted, or that one attach made and nobody used since, can go."""
    if view.total or view.waiting:
        return
    if view.pool.deleting:
        wants.removals.append(RemovePool(pool=view.key, reason="deleted, and its last sandbox is gone"))
    elif view.pool.adhoc and view.target == 0:
        idle_at = view.recency + limits.adhoc_idle_s
        if now >= idle_at:
            wants.removals.append(RemovePool(pool=view.key, reason="made for one attach and idle since"))
        else:
            wants.wake(idle_at)


def ask_for_unused(observed: Observed, limits: Limits, now: float, wants: Wants) -> None:
    """A lineage that no pool uses is built when a person asked for it: reset to revision 0 and not built since."""
    for key, lineage in observed.lineages.items():
        if lineage.current_revision or key in wants.builds or key not in observed.revisions:
            continue
        if key in observed.building_lineages or lineage.failures >= limits.max_failures:
            continue
        if lineage.failures and now < lineage.next_attempt_at:
            wants.wake(lineage.next_attempt_at)
        else:
            wants.builds[key] = BuildVersion(lineage=key, reason="asked for, and not built yet")


def surplus(view: PoolView) -> list[tuple[Sandbox, str]]:
    """Sandboxes above the target: not-ready ones first, then old versions, then the oldest. Trims the view."""
    going: list[tuple[Sandbox, str]] = []
    starting = view.starting
    spare = len(starting) - min(len(starting), view.waiting)
    excess = len(view.fresh) + spare - view.target
    if excess > 0:
        cut = min(excess, spare)
        if cut:
            starting.sort(key=lambda sandbox: (sandbox.created_at, sandbox.id))
            going += [(sandbox, f"more than {view.target} wanted; not ready yet") for sandbox in starting[-cut:]]
            del starting[-cut:]
        if excess > cut:
            view.fresh.sort(key=lambda sandbox: (sandbox.ready_at or sandbox.state_since, sandbox.id))
            going += [(sandbox, f"more than {view.target} wanted") for sandbox in view.fresh[: excess - cut]]
            del view.fresh[: excess - cut]
    over = view.claimed + len(starting) + len(view.fresh) + len(view.old) - view.pool.max_total
    extra_old = min(len(view.old), max(over, len(view.old) - max(0, view.target - len(view.fresh))))
    if extra_old > 0:
        view.old.sort(key=lambda sandbox: (sandbox.ready_at or sandbox.state_since, sandbox.id))
        going += [(sandbox, "replaced by a newer one") for sandbox in view.old[:extra_old]]
        del view.old[:extra_old]
    keep = 0 if view.strict else max(0, view.waiting - len(starting))
    if len(view.starting_old) > keep:
        view.starting_old.sort(key=lambda sandbox: (sandbox.created_at, sandbox.id))
        going += [(sandbox, "its version is superseded; not ready yet") for sandbox in view.starting_old[keep:]]
        del view.starting_old[keep:]
    return going
