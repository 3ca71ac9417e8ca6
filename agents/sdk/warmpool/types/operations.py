"""What operators and platforms declare and watch: templates, pools, builds, sandboxes, events, keys."""

from __future__ import annotations

import msgspec

from warmpool.types.sessions import Resources


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    ref: str = "HEAD"


class SetupStep(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    timeout_s: float | None = None


class LineageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of one template at one ref: what is current, and why the last build failed if it did."""

    key: str = ""
    ref: str | None = None
    state: str | None = None
    current: str | None = None
    current_revision: int = 0
    build: str | None = None
    failures: int = 0
    provision_failures: int = 0
    last_error: str | None = None
    last_error_code: str | None = None
    next_attempt_at: float | None = None


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A declared environment; ``revision`` rises when anything that a build reads changes."""

    name: str
    tenant: str = ""
    key: str = ""
    base: str = ""
    repository: Repository | None = None
    setup: list[SetupStep] = []
    env: dict[str, str] = {}
    resources: Resources = Resources()
    docker: bool = False
    build_allow: list[str] = []
    session_ttl_s: float | None = None
    idle_timeout_s: float | None = None
    max_age_s: float | None = None
    strict: bool = False
    trusted: bool = False
    shared_with: list[str] = []
    revision: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    lineages: list[LineageReport] = []


class PoolCounts(msgspec.Struct, frozen=True, kw_only=True):
    ready: int = 0
    building: int = 0
    claimed: int = 0
    draining: int = 0
    failed: int = 0
    waiting: int = 0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The sandboxes of one template and size that are kept ready."""

    name: str
    tenant: str = ""
    key: str = ""
    template: str = ""
    ref: str | None = None
    resources: Resources = Resources()
    min_ready: int = 0
    max_total: int = 0
    pinned_ready: int | None = None
    adhoc: bool = False
    deleting: bool = False
    counts: PoolCounts = PoolCounts()
    last_used_at: float | None = None
    current_version: str | None = None
    lineage: LineageReport | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's last decision on one pool, and its reasons."""

    target_ready: int
    bound_by: str = ""
    ready: int = 0
    building: int = 0
    claimed: int = 0
    draining: int = 0
    waiting: int = 0
    reasons: list[str] = []


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    pool: Pool | str
    decision: Decision | None = None
    at: float | None = None
    lineage: LineageReport | None = None


class BuildStep(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    command: str = ""
    timeout_s: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    error: str | None = None


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to make a version of a template."""

    id: str
    state: str
    template: str = ""
    lineage: str = ""
    tenant: str = ""
    revision: int = 0
    steps: list[BuildStep] = []
    sandbox: str | None = None
    version: str | None = None
    commit: str | None = None
    attempt: int = 1
    error: str | None = None
    error_code: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    step: str
    offset: int
    text: str


class BuildLogs(msgspec.Struct, frozen=True, kw_only=True):
    """``next`` is the offset to ask for next, per step; ``complete``: nothing will follow."""

    build: str
    state: str
    chunks: list[LogChunk] = []
    next: dict[str, int] = {}
    complete: bool = False


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, as the control plane records it."""

    id: str
    state: str
    pool: str = ""
    tenant: str = ""
    lineage: str = ""
    version: str | None = None
    revision: int = 0
    runtime: str = ""
    session: str | None = None
    memory_bytes: int | None = None
    cpu_cores: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    created_at: float = 0.0
    state_since: float | None = None
    ready_at: float | None = None
    expires_at: float | None = None
    step: str = ""
    reason: str = ""
    attempt: int = 1


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, who did it and why. ``id`` grows with time and resumes a stream."""

    kind: str
    subject: str
    id: str = ""
    at: float = 0.0
    tenant: str = ""
    actor: str = ""
    reason: str = ""
    data: dict[str, str] = {}


class EventsPage(msgspec.Struct, frozen=True, kw_only=True):
    events: list[Event]
    next: str = ""


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    role: str
    key: str = ""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str = ""
    role: str = ""
    note: str = ""
    created_at: float = 0.0
    revoked_at: float | None = None


class NewApiKey(ApiKey, frozen=True, kw_only=True):
    """A key just made: ``key`` is shown this once and stored nowhere."""

    key: str


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the service needs, and whether it is there."""

    name: str
    ok: bool
    detail: str = ""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    ready: bool
    parts: list[Part] = []


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a runtime can hold one limit or wall, how, or what would fix it."""

    name: str
    held: bool
    how: str = ""
    fix: str = ""


class RuntimeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the deployment's runtime can hold, as its workers reported."""

    runtime: str
    usable: bool
    reason: str = ""
    fix: str = ""
    version: str = ""
    limits: list[Held] = []
    isolation: list[Held] = []


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """``max_sessions``: sessions not ended at one time; ``max_ttl_s``: longest lease."""

    id: str
    max_sessions: int = 0
    max_ttl_s: float = 0.0
    created_at: float = 0.0
