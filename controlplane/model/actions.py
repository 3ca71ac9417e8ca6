"""What the scheduler sees and what it decides: input and output of planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.ids import LineageKey, PoolKey, SandboxId
from controlplane.model.resources import Budget
from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Lineage, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a forecast says of one pool: ready sandboxes worth keeping, and where the number comes from."""

    ready: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One consistent-enough reading of the store. ``waiting``: queued sessions per pool. ``last_used_at``: a
    pool's last claim or intent. ``revisions``: template revision wanted per lineage. ``building_lineages``:
    lineages with a live build. ``docker``/other template facts stay out: a plan needs only these."""

    now: float
    pools: tuple[Pool, ...] = ()
    sandboxes: tuple[Sandbox, ...] = ()
    lineages: Mapping[LineageKey, Lineage] = field(default_factory=dict)
    revisions: Mapping[LineageKey, int] = field(default_factory=dict)
    strict: frozenset[LineageKey] = frozenset()
    waiting: Mapping[PoolKey, int] = field(default_factory=dict)
    last_used_at: Mapping[PoolKey, float] = field(default_factory=dict)
    building_lineages: frozenset[LineageKey] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that bound a plan. ``max_starts_in_flight``: sandboxes building at once, all pools together.
    ``max_retires_in_flight``: draining at once. ``max_failures``: hard limit per lineage.
    ``ready_floor_share``: share of a pool's target that stays ready while versions are replaced.
    ``min_remaining_s``: closer than this to its age limit a ready sandbox is not handed out, so it goes;
    ``replace_ahead_s``: its replacement is started this much earlier still."""

    budget: Budget = field(default_factory=Budget)
    max_starts_in_flight: int = 8
    max_retires_in_flight: int = 16
    max_failures: int = 5
    ready_floor_share: float = 0.5
    adhoc_idle_s: float = 600.0
    min_remaining_s: float = 60.0
    replace_ahead_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Make ``count`` sandboxes of the lineage's current version. ``urgent``: sessions are waiting for them."""

    pool: PoolKey
    count: int
    reason: str
    urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    sandbox: SandboxId
    pool: PoolKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildVersion:
    lineage: LineageKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePool:
    pool: PoolKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWaiters:
    """Waiting sessions of the pool can't be served: answer them now, with the reason."""

    pool: PoolKey
    reason: str
    detail: str


Action = Provision | Retire | BuildVersion | RemovePool | FailWaiters


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecision:
    """Why a pool is sized as it is; what ``warmpool pool explain`` shows."""

    pool: PoolKey
    target_ready: int
    bound_by: str
    ready: int
    building: int
    claimed: int
    draining: int
    waiting: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``wake_at``: plan again no later than this, None when only events matter."""

    actions: tuple[Action, ...] = ()
    decisions: tuple[PoolDecision, ...] = ()
    wake_at: float | None = None
