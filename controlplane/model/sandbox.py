"""Sandboxes and sessions, as stored and observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.ids import LineageKey, PoolKey, SandboxId, SessionId, TenantId, VersionId

SandboxState = Literal["building", "ready", "claimed", "paused", "draining", "gone", "failed"]
SessionState = Literal["waiting", "binding", "attached", "paused", "rolling_back", "ended"]
StartKind = Literal["warm", "cold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """One isolated machine, for one session, never reused.

    ``door`` is the address of sandboxd (``unix:/path`` or ``sim:ID``), None until it was made.
    ``expires_at``: age limit of an unclaimed one. ``deadline_at``: when a sandbox that is still building or
    draining counts as stuck. ``pool_uid`` tells a pool from an earlier one of the same name.
    Only scalars: the store's scripts rewrite these records.
    """

    id: SandboxId
    pool: PoolKey
    pool_uid: str
    tenant: TenantId
    lineage: LineageKey
    version: VersionId
    revision: int
    state: SandboxState
    runtime: str
    memory_bytes: int
    cpu_cores: float
    pids: int
    disk_bytes: int | None = None
    door: str | None = None
    session: SessionId | None = None
    created_at: float = 0.0
    state_since: float = 0.0
    ready_at: float | None = None
    expires_at: float | None = None
    deadline_at: float | None = None
    step: str = "queued"
    reason: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A tenant's lease on one sandbox.

    ``start_reason``: for warm ``ready_in_pool``; for cold ``pool_empty``, ``no_pool``, ``version_changed``,
    ``resources_differ``, ``building``, ``bind_failed``. ``env`` is kept only until bind. ``idle_timeout_s``
    None: only the lease ends it. Flat string maps only: the store's scripts rewrite these records.
    """

    id: SessionId
    tenant: TenantId
    pool: PoolKey
    state: SessionState
    ttl_s: float
    api_key: str = ""
    sandbox: SandboxId | None = None
    door: str | None = None
    version: VersionId | None = None
    start: StartKind | None = None
    start_reason: str | None = None
    idempotency_key: str | None = None
    request_digest: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    created_at: float = 0.0
    claimed_at: float | None = None
    attached_at: float | None = None
    expires_at: float | None = None
    wait_until: float | None = None
    idle_timeout_s: float | None = None
    last_activity_at: float | None = None
    ended_at: float | None = None
    end_reason: str | None = None
    end_detail: str | None = None
    bind_failures: int = 0
