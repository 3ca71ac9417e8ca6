"""Sessions: a tenant's lease on one sandbox."""

from __future__ import annotations

from typing import Literal

import msgspec

SessionState = Literal["waiting", "binding", "attached", "paused", "rolling_back", "ended"]
StartKind = Literal["warm", "cold"]


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one sandbox may use at most; None means the template's or the server's own value."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a waiting session stands: ``position`` 0 is next; ``step`` is what its sandbox is doing."""

    position: int | None = None
    pool_building: int = 0
    step: str | None = None


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """``start`` says whether a ready sandbox was taken (``warm``) and ``start_reason`` why or why not;
    ``timings_ms`` how long each step of the attach took."""

    id: str
    state: SessionState
    tenant: str = ""
    pool: str = ""
    template: str | None = None
    start: StartKind | None = None
    start_reason: str | None = None
    sandbox: str | None = None
    version: str | None = None
    labels: dict[str, str] = {}
    created_at: float = 0.0
    attached_at: float | None = None
    expires_at: float | None = None
    ttl_s: float | None = None
    idle_timeout_s: float | None = None
    ended_at: float | None = None
    end_reason: str | None = None
    end_detail: str | None = None
    queue: QueuePlace | None = None
    timings_ms: dict[str, float | None] | None = None
