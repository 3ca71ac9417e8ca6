"""Tenants, quotas and API keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from controlplane.ids import ApiKeyId, TenantId

Role = Literal["platform", "ops", "browser-intent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """``max_sessions``: sessions not ended at one time. ``max_ttl_s``: longest lease a session may ask for."""

    id: TenantId
    max_sessions: int = 1000
    max_ttl_s: float = 86400.0
    created_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A stored key. The secret itself is never stored: ``mac`` is its keyed hash (HMAC-SHA256, hex)."""

    id: ApiKeyId
    tenant: TenantId
    role: Role
    mac: str
    note: str = ""
    created_at: float = 0.0
    revoked_at: float | None = None
