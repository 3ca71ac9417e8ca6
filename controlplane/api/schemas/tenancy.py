"""Callers, keys, tenants, events, health."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controlplane.api.schemas.common import In, Out
from controlplane.model.events import Event
from controlplane.model.tenancy import ApiKey, Tenant


class WhoamiOut(Out):
    tenant: str
    role: str
    key: str = Field(description="The key's id, not its secret.")


class KeyIn(In):
    tenant: str | None = Field(default=None, description="Default: the tenant of the key that asks.")
    role: Literal["platform", "ops", "browser-intent"] = "platform"
    note: str = Field(default="", examples=["build server"])


class KeyOut(Out):
    id: str
    tenant: str
    role: str
    note: str
    created_at: float
    revoked_at: float | None


class NewKeyOut(KeyOut):
    key: str = Field(description="The key itself: shown this once, never readable again.")


class KeysOut(Out):
    keys: list[KeyOut]


class TenantIn(In):
    max_sessions: int | None = Field(default=None, ge=0, le=10**9, description="Sessions not ended at one time.")
    max_ttl_s: float | None = Field(default=None, gt=0, le=10**9, description="Longest lease a session may ask for.")


class TenantOut(Out):
    id: str
    max_sessions: int
    max_ttl_s: float


class EventOut(Out):
    id: str
    at: float
    kind: str = Field(examples=["session.attached"])
    subject: str
    tenant: str
    actor: str
    reason: str
    data: dict[str, str]


class EventsOut(Out):
    events: list[EventOut]
    next: str = Field(description="Pass it as `after` to go on from here.")


class PartOut(Out):
    name: str
    ok: bool
    detail: str


class ReadyOut(Out):
    ready: bool
    parts: list[PartOut]


def key_out(key: ApiKey) -> KeyOut:
    return KeyOut(
        id=key.id,
        tenant=key.tenant,
        role=key.role,
        note=key.note,
        created_at=key.created_at,
        revoked_at=key.revoked_at,
    )


def tenant_out(tenant: Tenant) -> TenantOut:
    return TenantOut(id=tenant.id, max_sessions=tenant.max_sessions, max_ttl_s=tenant.max_ttl_s)


def event_out(event: Event) -> EventOut:
    return EventOut(
        id=event.id,
        at=event.at,
        kind=event.kind,
        subject=event.subject,
        tenant=event.tenant,
        actor=event.actor,
        reason=event.reason,
        data=dict(event.data),
    )
