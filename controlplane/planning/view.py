"""One pool as a plan sees it: its sandboxes sorted into what they are good for.

Mutable on purpose: one plan fills and spends these views, and nothing outside the package sees them.
"""

from __future__ import annotations

from controlplane.ids import LineageKey, PoolKey, lineage_key
from controlplane.model.actions import Limits, Observed
from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Lineage, Pool

NEVER = float("inf")


class PoolView:
    """``fresh``: ready, of the version wanted now. ``old``: ready and still usable, to be replaced (superseded
    or near the age limit). ``useless``: ready but never to be handed out again, with the reason.
    ``starting``: building the version wanted now; ``starting_old``: building another one. ``total`` counts
    every sandbox of the pool's name that exists, whatever its state or the pool's uid. ``room``: how many more
    max_total allows now; ``coming``: how many more once what drains is gone."""

    __slots__ = (
        "again",
        "bound_by",
        "can_start",
        "claimed",
        "coming",
        "draining",
        "evicted",
        "failed",
        "floor",
        "fresh",
        "in_use",
        "key",
        "lineage",
        "lineage_key",
        "old",
        "order",
        "pool",
        "probing",
        "reasons",
        "recency",
        "room",
        "stale",
        "starting",
        "starting_old",
        "starts",
        "strict",
        "stuck",
        "target",
        "total",
        "uid",
        "urgent_starts",
        "useless",
        "useless_starting",
        "version",
        "waiting",
        "wanted_revision",
    )

    def __init__(self, pool: Pool, observed: Observed) -> None:
        key = pool.key
        self.pool = pool
        self.key: PoolKey = key
        self.uid = pool.uid
        self.lineage_key: LineageKey = lineage_key(pool.template, pool.ref)
        lineage = observed.lineages.get(self.lineage_key)
        self.lineage: Lineage | None = lineage
        self.version = lineage.current if lineage else None
        self.wanted_revision = observed.revisions.get(self.lineage_key, 0)
        self.strict = self.lineage_key in observed.strict
        self.stale = lineage is None or lineage.current is None or lineage.current_revision < self.wanted_revision
        self.waiting = observed.waiting.get(key, 0)
        self.recency = observed.last_used_at.get(key, pool.created_at)
        self.fresh: list[Sandbox] = []
        self.old: list[Sandbox] = []
        self.useless: list[tuple[Sandbox, str]] = []
        self.useless_starting: list[Sandbox] = []
        self.starting: list[Sandbox] = []
        self.starting_old: list[Sandbox] = []
        self.stuck: list[Sandbox] = []
        self.failed: list[Sandbox] = []
        self.again: list[Sandbox] = []
        self.claimed = 0
        self.draining = 0
        self.total = 0
        self.target = 0
        self.floor = 0
        self.bound_by = ""
        self.in_use = False
        self.can_start = False
        self.probing = False
        self.room = 0
        self.coming = 0
        self.evicted = 0
        self.order: list[Sandbox] | None = None
        self.starts = 0
        self.urgent_starts = 0
        self.reasons: list[str] = []

    def add_ready(self, sandbox: Sandbox, now: float, limits: Limits) -> float:
        """Sort a ready sandbox in; returns when its standing changes next (``NEVER``: by age never)."""
        changes_at = NEVER
        aging = False
        expires_at = sandbox.expires_at
        if expires_at is not None:
            # A short-lived sandbox must not be useless, or replaced, from its first second: no refill storm.
            life = expires_at - (sandbox.ready_at or sandbox.state_since)
            useless_at = expires_at - min(limits.min_remaining_s, life / 2)
            if now >= useless_at:
                self.useless.append((sandbox, "reached its age limit"))
                return NEVER
            replace_at = useless_at - min(limits.replace_ahead_s, life / 4)
            aging = now >= replace_at
            changes_at = useless_at if aging else replace_at
        if sandbox.lineage != self.lineage_key:
            self.useless.append((sandbox, "the pool now uses another template or ref"))
            return NEVER
        superseded = sandbox.version != self.version or not self.same_size(sandbox)
        if self.strict and (superseded or self.stale):
            self.useless.append((sandbox, "its version is superseded and the template is strict"))
        elif superseded or aging:
            self.old.append(sandbox)
        else:
            self.fresh.append(sandbox)
        return changes_at

    def add_building(self, sandbox: Sandbox, now: float) -> float:
        deadline_at = sandbox.deadline_at
        if deadline_at is not None and now >= deadline_at:
            self.stuck.append(sandbox)
            return NEVER
        if sandbox.lineage != self.lineage_key:
            self.useless_starting.append(sandbox)
        elif sandbox.version == self.version and self.same_size(sandbox) and not (self.strict and self.stale):
            self.starting.append(sandbox)
        else:
            self.starting_old.append(sandbox)
        return NEVER if deadline_at is None else deadline_at

    def same_size(self, sandbox: Sandbox) -> bool:
        """Whether it has the size that the pool asks for now; the store's claim judges likewise."""
        wanted = self.pool.resources
        return (
            sandbox.memory_bytes == wanted.memory_bytes
            and sandbox.cpu_cores == wanted.cpu_cores
            and sandbox.pids == wanted.pids
            and sandbox.disk_bytes == wanted.disk_bytes
        )

    def by_age(self) -> list[Sandbox]:
        """Usable ready sandboxes, oldest first; worked out on first use."""
        if self.order is None:
            self.order = sorted((*self.old, *self.fresh), key=_age_key)
        return self.order


def _age_key(sandbox: Sandbox) -> tuple[float, str]:
    return (sandbox.ready_at or sandbox.state_since, sandbox.id)


class Grouped:
    """All sandboxes, grouped once. ``foreign``: those of a pool that is gone or was made again under its name."""

    __slots__ = ("building", "draining", "foreign", "foreign_again", "freeing", "used", "views", "wake_at")

    def __init__(self) -> None:
        self.views: dict[PoolKey, PoolView] = {}
        self.foreign: list[tuple[Sandbox, str]] = []
        self.foreign_again: list[Sandbox] = []
        self.used: list[float] = [0, 0.0, 0]
        self.freeing: list[float] = [0, 0.0, 0]
        self.building = 0
        self.draining = 0
        self.wake_at = NEVER


def group(observed: Observed, limits: Limits, now: float) -> Grouped:
    """Sort every sandbox into its pool's view; linear."""
    grouped = Grouped()
    views: dict[PoolKey, PoolView] = {pool.key: PoolView(pool, observed) for pool in observed.pools}
    grouped.views = views
    memory = cpu = 0.0
    count = 0
    wake_at = NEVER
    for sandbox in observed.sandboxes:
        state = sandbox.state
        if state == "gone":
            continue
        memory += sandbox.memory_bytes
        cpu += sandbox.cpu_cores
        count += 1
        view = views.get(sandbox.pool)
        if view is not None:
            view.total += 1
        if view is None or sandbox.pool_uid != view.uid:
            changes_at = _add_foreign(grouped, view, sandbox, now)
        elif state == "ready":
            changes_at = view.add_ready(sandbox, now, limits)
        elif state == "claimed" or state == "paused":
            view.claimed += 1
            continue
        elif state == "building":
            grouped.building += 1
            changes_at = view.add_building(sandbox, now)
        else:
            changes_at = _add_leaving(grouped, view, sandbox, now)
        if changes_at < wake_at:
            wake_at = changes_at
    grouped.used = [memory, cpu, count]
    grouped.wake_at = wake_at
    return grouped


def _add_leaving(grouped: Grouped, view: PoolView, sandbox: Sandbox, now: float) -> float:
    if sandbox.state == "failed":
        view.failed.append(sandbox)
        return NEVER
    view.draining += 1
    return _add_draining(grouped, view.again, sandbox, now)


def _add_draining(grouped: Grouped, again: list[Sandbox], sandbox: Sandbox, now: float) -> float:
    grouped.draining += 1
    grouped.freeing[0] += sandbox.memory_bytes
    grouped.freeing[1] += sandbox.cpu_cores
    grouped.freeing[2] += 1
    if sandbox.deadline_at is not None and now >= sandbox.deadline_at:
        again.append(sandbox)
        return NEVER
    return NEVER if sandbox.deadline_at is None else sandbox.deadline_at


def _add_foreign(grouped: Grouped, view: PoolView | None, sandbox: Sandbox, now: float) -> float:
    """A sandbox whose pool is gone: never handed out again; claimed ones live on until their session ends."""
    if view is not None and sandbox.state in ("claimed", "paused"):
        view.claimed += 1
    if sandbox.state == "building":
        grouped.building += 1
    if sandbox.state == "draining":
        if view is not None:
            view.draining += 1
        return _add_draining(grouped, grouped.foreign_again, sandbox, now)
    if sandbox.state in ("building", "ready", "failed"):
        why = "its pool is gone" if view is None else "its pool was made again under the same name"
        grouped.foreign.append((sandbox, why))
    return NEVER
