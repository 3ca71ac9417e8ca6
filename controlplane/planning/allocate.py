"""Who gets room: needs in their order of urgency, and what must give way to them.

Order of needs: waiting sessions (in turn, pool by pool); ready sandboxes below a pool's floor (min_ready, or
the pinned number), most recently used pool first; the rest up to the target, likewise; replacements of old
versions. What gives way is ranked the same way round, so that no two needs can take turns at evicting
each other: ready ones above a floor first, least recently used pool first; then, for a waiting session of any
pool or the floor of a more recently used one, those below a floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from controlplane.ids import PoolKey
from controlplane.model.actions import Limits
from controlplane.model.resources import Resources
from controlplane.model.sandbox import Sandbox
from controlplane.planning.ledger import Ledger
from controlplane.planning.view import PoolView

WAITING, FLOOR, TARGET = 1, 2, 3

Retiring = Callable[[PoolView, Sandbox, str], None]


class Allocation:
    """One round of handing out room. ``slots``: starts (or reservations for one) still allowed in this plan.
    ``retire`` notes a retirement and frees its share in the ledger."""

    def __init__(self, views: list[PoolView], ledger: Ledger, limits: Limits, slots: int, retire: Retiring) -> None:
        self.views = views
        self.ledger = ledger
        self.limits = limits
        self.slots = slots
        self._retire = retire
        self._by_recency: list[PoolView] | None = None
        self._in_vain: dict[int, list[Resources]] = {}

    def give_back(self) -> None:
        """The budget was lowered below what is used: ready ones go, whosever they are, until it holds."""
        for above_floor in (True, False):
            for victim in self._least_recent():
                spare = _spare(victim, above_floor)
                while spare > 0 and self.ledger.overdrawn():
                    self._evict_one(victim, "the budget is overdrawn; least recently used pool gives first")
                    spare -= 1

    def serve(self) -> None:
        self._serve_waiting()
        wanting = [view for view in self.views if view.can_start and view.target]
        needs = [(view, *_needs(view)) for view in wanting]
        needs = [need for need in needs if need[1] or need[2] or need[3]]
        needs.sort(key=lambda need: (-need[0].recency, need[0].key))
        for tier in (FLOOR, TARGET):
            for need in needs:
                for _ in range(need[1] if tier == FLOOR else need[2]):
                    if self.slots <= 0 or not self._unit(need[0], tier):
                        break
        for view, _floor, _target, replacements in needs:
            if replacements:
                self._replace(view, replacements)

    def _serve_waiting(self) -> None:
        """One for each pool in turn, so that one pool's long queue does not hold up another's short one."""
        short: dict[PoolKey, int] = {}
        in_turn: list[PoolView] = []
        for view in self.views:
            uncovered = view.waiting - len(view.starting) - len(view.starting_old)
            if view.can_start and uncovered > 0:
                short[view.key] = uncovered
                in_turn.append(view)
        in_turn.sort(key=lambda view: (-view.recency, view.key))
        while in_turn and self.slots > 0:
            left = []
            for view in in_turn:
                if self.slots > 0 and self._unit(view, WAITING):
                    short[view.key] -= 1
                    if short[view.key] > 0:
                        left.append(view)
            in_turn = left

    def _unit(self, view: PoolView, tier: int) -> bool:
        """Start one sandbox, or reserve its room; False if the pool can't get one more in this plan."""
        if view.probing and view.starts + len(view.starting) >= 1:
            _note(view, "one start at a time until one succeeds")
            return False
        must_wait = view.room <= 0
        if must_wait and view.coming <= 0:
            _note(view, f"max_total of {view.pool.max_total} reached")
            return False
        size = view.pool.resources
        if not must_wait and self.ledger.fits_now(size):
            self.ledger.take(size)
            view.starts += 1
            view.urgent_starts += tier == WAITING
        elif self.ledger.fits_soon(size) or self._evict(view, tier, size):
            self.ledger.reserve(size)
            _note(view, "waits for draining sandboxes to be gone")
        else:
            _note(view, "the budget of the deployment is used up, and nothing less urgent can give way")
            return False
        if must_wait:
            view.coming -= 1
        else:
            view.room -= 1
        self.slots -= 1
        return True

    def _evict(self, view: PoolView, tier: int, size: Resources) -> bool:
        """Make ready sandboxes of less urgent pools give way until ``size`` will fit; all or none."""
        if any(_covers(size, tried) for tried in self._in_vain.get(tier, ())):
            return False
        chosen: list[PoolView] = []
        taken: dict[PoolKey, int] = {}
        memory, cpu, count = 0.0, 0.0, 0
        for victim, spare in self._candidates(view, tier):
            first = victim.evicted + taken.get(victim.key, 0)
            for sandbox in victim.by_age()[first : first + spare]:
                memory, cpu, count = memory + sandbox.memory_bytes, cpu + sandbox.cpu_cores, count + 1
                taken[victim.key] = taken.get(victim.key, 0) + 1
                chosen.append(victim)
                if self.ledger.fits_soon(size, (memory, cpu, count)):
                    why = "a session waits" if tier == WAITING else "a more recently used pool needs room"
                    for loser in chosen:
                        self._evict_one(loser, f"gave way to {view.key}: {why}")
                    return True
        self._in_vain.setdefault(tier, []).append(size)
        return False

    def _candidates(self, view: PoolView, tier: int) -> list[tuple[PoolView, int]]:
        """Who gives way to this need, in order, with how many each can give at most."""
        found: list[tuple[PoolView, int]] = []
        for victim in self._least_recent():
            if victim is view or (tier == TARGET and victim.recency >= view.recency):
                continue
            if (spare := _spare(victim, above_floor=True)) > 0:
                found.append((victim, spare))
        if tier == TARGET:
            return found
        for victim in self._least_recent():
            if victim is view or (tier == FLOOR and victim.recency >= view.recency):
                continue
            below = _spare(victim, above_floor=False) - max(0, _spare(victim, above_floor=True))
            if below > 0:
                found.append((victim, below))
        return found

    def _replace(self, view: PoolView, wanted: int) -> None:
        """Bring in the new version beside the old one where there is room, else old ones go first, but for a
        floor of ready ones. Where the floor itself leaves no room (max_total 1), it gives way one by one."""
        old = {sandbox.id for sandbox in view.old}
        left = [sandbox for sandbox in view.by_age()[view.evicted :] if sandbox.id in old]
        usable = len(view.by_age()) - view.evicted
        most = max(0, view.pool.max_total - view.claimed - 1)
        floor = min(max(1, math.ceil(view.target * self.limits.ready_floor_share)), most)
        size = view.pool.resources
        # Nothing of this pool is on its way, in either direction: waiting for it would be for ever.
        stands_still = not (view.starting or view.starts or view.draining or view.coming)
        for _ in range(wanted):
            if self.slots <= 0 or (view.probing and view.starts + len(view.starting) >= 1):
                return
            if view.room > 0 and self.ledger.fits_now(size):
                self.ledger.take(size)
                view.starts, view.room, self.slots = view.starts + 1, view.room - 1, self.slots - 1
            elif view.coming > 0 and self.ledger.fits_soon(size):
                self.ledger.reserve(size)
                view.coming, self.slots = view.coming - 1, self.slots - 1
            elif left and (usable > floor or stands_still):
                self._retire(view, left.pop(0), "makes room for the new version")
                view.coming -= 1
                stands_still = False
                self.ledger.reserve(size)
                usable, self.slots = usable - 1, self.slots - 1
            else:
                _note(view, f"replacing old sandboxes keeps {floor} ready")
                return

    def _evict_one(self, victim: PoolView, why: str) -> None:
        sandbox = victim.by_age()[victim.evicted]
        victim.evicted += 1
        self._retire(victim, sandbox, why)

    def _least_recent(self) -> list[PoolView]:
        if self._by_recency is None:
            holders = [view for view in self.views if view.fresh or view.old]
            self._by_recency = sorted(holders, key=lambda view: (view.recency, view.key))
        return self._by_recency


def _needs(view: PoolView) -> tuple[int, int, int]:
    """Sandboxes missing below the floor, below the target, and old ones to replace."""
    spare = max(0, len(view.starting) + view.urgent_starts - view.waiting)
    have = len(view.fresh) + spare
    usable = have + len(view.old)
    below_floor = max(0, view.floor - usable)
    below_target = max(0, view.target - max(usable, view.floor))
    replacements = max(0, view.target - have - below_floor - below_target)
    return below_floor, below_target, replacements


def _spare(view: PoolView, above_floor: bool) -> int:
    ready = len(view.fresh) + len(view.old) - view.evicted
    return ready - view.floor if above_floor else ready


def _covers(size: Resources, tried: Resources) -> bool:
    return size.memory_bytes >= tried.memory_bytes and size.cpu_cores >= tried.cpu_cores


def _note(view: PoolView, reason: str) -> None:
    if reason not in view.reasons:
        view.reasons.append(reason)
