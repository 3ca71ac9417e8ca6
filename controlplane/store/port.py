"""The store port.

Every method is one atomic change or one read. State changes follow ``model.lifecycle``; an illegal one
raises Conflict ``illegal_transition`` and changes nothing; each change appends an event. Time is the
server's (``TIME``), so that clocks of callers do not matter. When the server can't be reached within the
configured time: Retryable ``store_unavailable``.

``fence``: the leader's token; a call with an older one raises Conflict ``fenced``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from controlplane.ids import (
    ApiKeyId,
    BuildId,
    LineageKey,
    PoolKey,
    SandboxId,
    SessionId,
    TemplateKey,
    TenantId,
    VersionId,
)
from controlplane.model.actions import Observed
from controlplane.model.events import Event
from controlplane.model.sandbox import Sandbox, Session
from controlplane.model.template import Build, Lineage, Pool, Template, Version
from controlplane.model.tenancy import ApiKey, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    holder: str
    fence: int
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """``session`` is the id to use if this is not a repeat. ``request_digest`` guards the idempotency key:
    the same key with another digest is Conflict ``idempotency_key_reused``. ``min_remaining_s``: a sandbox
    closer than this to its expiry is passed over. ``proven_key``: an API key that was proven a while ago; the claim is
    Denied ``invalid_key`` if it has been revoked since. ``cold_reason``: reason to record on a miss, when the
    caller knows a better one than ``pool_empty`` (``no_pool``, ``resources_differ``). ``max_waiting``: longest
    queue of a pool; beyond it the answer is ``no_capacity``. Permanent ``invalid_ttl`` for ttl_s ≤ 0."""

    session: SessionId
    tenant: TenantId
    api_key: str
    pool: PoolKey
    ttl_s: float
    wait_s: float
    idle_timeout_s: float | None = None
    idempotency_key: str | None = None
    request_digest: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    min_remaining_s: float = 60.0
    proven_key: ApiKeyId | None = None
    cold_reason: str | None = None
    allow_superseded: bool = True
    max_waiting: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """``claimed``: session is ``binding`` with a sandbox. ``waiting``: in the pool's queue. ``repeat``: the
    session an earlier call with this idempotency key (or session id) made, in whatever state. ``over_quota``,
    ``no_capacity``: nothing made. ``sessions_now``: the tenant's sessions that have not ended."""

    outcome: Literal["claimed", "waiting", "repeat", "over_quota", "no_capacity"]
    session: Session | None = None
    position: int | None = None
    sessions_now: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSandbox:
    """``count_limit``: the pool's max_total, checked in the same step against live + terminating + in flight
    (the pool's own record counts too, if lower). ``deadline_s``: it counts as stuck after that time."""

    sandbox: Sandbox
    count_limit: int
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    ready: int = 0
    building: int = 0
    claimed: int = 0
    draining: int = 0
    failed: int = 0
    waiting: int = 0


class Store(Protocol):
    # -- life, schema, time
    async def open(self) -> None:
        """Connect, check the schema version, migrate an older one step by step; Permanent ``schema_too_new``."""
        ...

    async def ensure_schema(self) -> bool:
        """As ``open``, for a store that may have been emptied; True if the state was made just now. Every
        changing call does this by itself when it finds the state missing."""
        ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def now(self) -> float: ...

    # -- leadership
    async def lead(self, holder: str, ttl_s: float) -> Leadership | None:
        """Become leader, or None while another holder's lease lasts. A new term raises the fence by one;
        renewing one's own lease keeps it."""
        ...

    async def resign(self, leadership: Leadership) -> None: ...

    async def leader(self) -> str | None:
        """Who leads now; None while nobody's lease lasts."""
        ...

    # -- presence
    async def announce(self, role: str, holder: str, facts: str, ttl_s: float) -> None:
        """Say that a process of this role is here, for ``ttl_s`` from now, with facts of its own (JSON text)."""
        ...

    async def announced(self, role: str) -> dict[str, str]:
        """Holder → facts of those whose announcement still lasts."""
        ...

    # -- tenants and keys
    async def put_tenant(self, tenant: Tenant) -> None: ...
    async def get_tenant(self, tenant: TenantId) -> Tenant: ...
    async def put_api_key(self, key: ApiKey) -> None: ...
    async def get_api_key(self, key: ApiKeyId) -> ApiKey: ...
    async def list_api_keys(self, tenant: TenantId | None) -> list[ApiKey]: ...
    async def revoke_api_key(self, key: ApiKeyId) -> ApiKey: ...

    # -- templates, pools
    async def put_template(self, template: Template) -> Template:
        """Create or replace. The revision is set here: kept if nothing a build reads changed, else raised
        (failures and back-off of its lineages are then reset). Wakes the scheduler."""
        ...

    async def get_template(self, key: TemplateKey) -> Template: ...
    async def list_templates(self) -> list[Template]: ...

    async def delete_template(self, key: TemplateKey) -> None:
        """With its builds. Conflict ``template_in_use`` while a pool names it. Missing: success."""
        ...

    async def put_pool(self, pool: Pool) -> Pool:
        """Create (a new uid) or update (the uid stays). Conflict ``pool_deleting`` while the old one drains."""
        ...

    async def get_pool(self, key: PoolKey) -> Pool: ...
    async def list_pools(self) -> list[Pool]: ...
    async def set_pool_pin(self, key: PoolKey, ready: int | None) -> Pool: ...

    async def delete_pool(self, key: PoolKey) -> None:
        """Mark as deleting: waiters end with ``pool_deleted``, ready ones drain, attached ones live on."""
        ...

    async def remove_pool(self, key: PoolKey, fence: int) -> bool:
        """Forget a deleting or idle adhoc pool that has no sandbox and no waiter; False if it has."""
        ...

    async def pool_counts(self, key: PoolKey) -> PoolCounts: ...

    async def pool_used_at(self, key: PoolKey) -> float | None:
        """The pool's last claim or intent (its recency)."""
        ...

    # -- lineages, versions, builds
    async def get_lineage(self, key: LineageKey) -> Lineage | None: ...
    async def list_lineages(self) -> list[Lineage]: ...

    async def create_build(self, build: Build, fence: int) -> bool:
        """Start a build of its lineage (made if missing); False if one is live."""
        ...

    async def get_build(self, key: BuildId) -> Build: ...
    async def list_builds(self, template: TemplateKey | None, limit: int) -> list[Build]: ...

    async def update_build(self, build: Build) -> None:
        """Write progress of a live build (refreshes its heartbeat). Conflict ``build_ended`` otherwise."""
        ...

    async def finish_build(self, build: Build, version: Version | None, retry_after_s: float) -> None:
        """End a build. With a version: publish it as the lineage's current one, supersede the old, reset
        failures. Without: count a failure and set next_attempt_at = now + retry_after_s. Wakes."""
        ...

    async def get_version(self, key: VersionId) -> Version: ...
    async def find_version(self, key: VersionId) -> Version | None: ...
    async def list_versions(self) -> list[Version]: ...
    async def delete_version(self, key: VersionId) -> None: ...

    async def note_provision(self, lineage: LineageKey, ok: bool, error: str, retry_after_s: float) -> Lineage:
        """Count (or reset) failures of sandboxes to become ready."""
        ...

    async def forget_lineage(self, key: LineageKey) -> bool:
        """Forget a ref that no pool names and nothing builds; its version is superseded. False if it must stay:
        it is in use, or the template's own ref. Missing: True."""
        ...

    async def reset_lineage(self, key: LineageKey, rebuild: bool = True) -> None:
        """A person asks to try again now: failures 0, no back-off. ``rebuild``: current_revision = 0, so that
        a build starts even if nothing changed. A lineage without a record is made, if its template exists."""
        ...

    # -- claim and sessions
    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """One step: idempotency key, quota, pop of the newest fit sandbox of the current version (else, unless
        strict, of the superseded one), session record, recency, event; a miss wakes the scheduler now, a hit when
        it is bound."""
        ...

    async def claim_next(self, session: SessionId, bad: SandboxId, reason: str) -> ClaimResult:
        """Bind failed: fail that sandbox and, in the same step, take the next one or queue at the front."""
        ...

    async def bound(self, session: SessionId, sandbox: SandboxId) -> Session:
        """binding → attached; sets attached_at and expires_at, drops env. Repeat: the same session.
        Conflict when the session ended meanwhile (the caller then does nothing: the sandbox is draining)."""
        ...

    async def get_session(self, key: SessionId) -> Session: ...
    async def list_sessions(
        self, tenant: TenantId | None, states: Sequence[str], labels: Mapping[str, str], limit: int
    ) -> list[Session]: ...

    async def queue_position(self, session: SessionId) -> int | None:
        """0 is next; None when not waiting."""
        ...

    async def extend_session(self, session: SessionId, ttl_s: float) -> Session:
        """Lease ends ttl_s from now. Conflict ``session_ended`` when it expired first (checked here)."""
        ...

    async def touch_session(self, session: SessionId) -> None:
        """Note activity, for the idle rule. Ended: no effect."""
        ...

    async def end_session(self, session: SessionId, reason: str, detail: str, actor: str) -> Session:
        """Legal in every state, idempotent; frees the quota slot, drains the sandbox, wakes. The first reason
        stays."""
        ...

    async def due_sessions(self, limit: int) -> list[Session]:
        """End every session whose lease or waiting time is over (checked atomically), and return them."""
        ...

    async def idle_candidates(self, limit: int) -> list[Session]:
        """Attached sessions whose idle time-out has passed by the store's record; the caller asks sandboxd
        whether a command runs before it ends one."""
        ...

    async def serve_waiting(self, pool: PoolKey, limit: int) -> list[Session]:
        """Give ready sandboxes to waiting sessions, first come first served: for those that a claim or
        ``sandbox_ready`` could not match (a requeued session, a version that became current again). The
        sessions returned are ``binding``; the caller binds them."""
        ...

    async def end_waiting(self, pool: PoolKey, reason: str, detail: str, actor: str) -> list[Session]:
        """End every session that waits for the pool, and return them."""
        ...

    async def wait_session(self, session: SessionId, timeout_s: float) -> Session:
        """The session once it left ``waiting`` and ``binding``, or as it is after the time."""
        ...

    # -- sandboxes
    async def create_sandbox(self, new: NewSandbox, fence: int) -> bool:
        """Record a sandbox as building; False if the pool is at its limit, deleting or another uid."""
        ...

    async def get_sandbox(self, key: SandboxId) -> Sandbox: ...
    async def find_sandbox(self, key: SandboxId) -> Sandbox | None: ...
    async def list_sandboxes(self, pool: PoolKey | None) -> list[Sandbox]: ...

    async def sandbox_step(self, key: SandboxId, step: str, door: str | None, deadline_s: float) -> Sandbox:
        """Progress of a building or draining one; moves its deadline. Conflict if in another state."""
        ...

    async def sandbox_ready(self, key: SandboxId, max_age_s: float) -> Session | None:
        """building → ready, or, if a session waits for this pool and version, → claimed by the first of the
        queue, which becomes binding and is returned for the caller to bind. Repeat: the same answer."""
        ...

    async def fail_sandbox(self, key: SandboxId, reason: str, actor: str) -> Sandbox | None:
        """→ failed. A session that held it ends with ``sandbox_lost`` (binding: it is queued again, first)."""
        ...

    async def drain_sandbox(
        self, key: SandboxId, reason: str, actor: str, fence: int | None, unclaimed_only: bool
    ) -> bool:
        """→ draining from building, ready or failed; False, nothing changed, if claimed and ``unclaimed_only``."""
        ...

    async def sandbox_gone(self, key: SandboxId) -> None:
        """draining → gone: forget the record. Wakes. Missing: success."""
        ...

    async def adopt(self, sandbox: Sandbox, session: Session | None) -> bool:
        """Rebuild a lost record from what runs; False when the store already knows it."""
        ...

    # -- the scheduler's view
    async def observe(self) -> Observed: ...

    async def explain(self, decisions: Mapping[PoolKey, str]) -> None:
        """Keep the last decision of each pool (JSON text)."""
        ...

    async def explained(self, pool: PoolKey) -> str | None: ...

    # -- events and wake-ups
    async def append_event(self, event: Event) -> str: ...

    async def read_events(self, after: str, tenant: TenantId | None, limit: int, block_s: float) -> list[Event]:
        """Events later than ``after`` (``0`` is the oldest kept, ``$`` now); tenant None reads all."""
        ...

    async def wake(self) -> None: ...

    async def wait_wake(self, timeout_s: float) -> bool:
        """True once woken since the last call (wake-ups coalesce); False after the time."""
        ...

    def follow_events(self, after: str, tenant: TenantId | None) -> AsyncIterator[Event]: ...

    async def counters(self) -> Mapping[str, float]:
        """Totals since the state began, for metrics that several processes share."""
        ...

    async def count(self, name: str, value: float = 1.0) -> None: ...
