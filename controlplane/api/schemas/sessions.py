"""Sessions."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ConfigDict, Field

from controlplane.api.schemas.common import In, Out, ResourcesIn, shown_name
from controlplane.ids import TenantId
from controlplane.model.sandbox import Session
from controlplane.sessions.request import AttachRequest, ResourceWish
from controlplane.sessions.service import Progress


class AttachIn(In):
    """Name a pool, or a template with a ref or resources of its own."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"pool": "demo", "wait_s": 30, "labels": {"run": "42"}, "env": {"CI": "1"}},
                {"template": "demo", "ref": "main", "resources": {"memory_bytes": "2Gi"}, "ttl_s": 900},
            ]
        },
    )

    pool: str | None = Field(default=None, description="A pool's name; `tenant/name` for one that was shared.")
    template: str | None = Field(default=None, description="A template's name, instead of a pool.")
    ref: str | None = Field(default=None, description="Branch, tag or commit; with `template` only.")
    resources: ResourcesIn | None = Field(default=None, description="Sizes; with `template` only.")
    ttl_s: float | None = Field(default=None, description="Length of the lease. Default: the template's.")
    idle_timeout_s: float | None = Field(default=None, description="End the session after so long without activity.")
    wait_s: float | None = Field(
        default=None,
        description="How long this request is held until a sandbox is ready. Over that the answer is 202; the "
        "session stays queued until max(wait_s, 30 s) after its creation.",
    )
    labels: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict, description="Environment of the session's commands.")
    idempotency_key: str | None = Field(
        default=None, description="The same key gives the same session. Also as header Idempotency-Key."
    )

    def request(self, idempotency_key: str | None) -> AttachRequest:
        sizes = self.resources
        return AttachRequest(
            pool=self.pool,
            template=self.template,
            ref=self.ref,
            resources=None if sizes is None else ResourceWish(**sizes.model_dump()),
            ttl_s=self.ttl_s,
            idle_timeout_s=self.idle_timeout_s,
            wait_s=self.wait_s,
            labels=self.labels,
            env=self.env,
            idempotency_key=idempotency_key,
        )


class KeepaliveIn(In):
    ttl_s: float | None = Field(
        default=None,
        description="The lease ends so many seconds from now. Default: the session's ttl_s.",
        examples=[600],
    )


class QueueOut(Out):
    position: int | None = Field(description="0 is next.")
    pool_building: int = Field(description="Sandboxes of the pool on their way.")
    step: str | None = Field(description="What the most advanced of them is at.")


class SessionOut(Out):
    """A tenant's lease on one sandbox."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "id": "se-3v9q0h2m5x8k1c7d",
                    "tenant": "acme",
                    "pool": "demo",
                    "template": "demo",
                    "state": "attached",
                    "start": "warm",
                    "start_reason": "ready_in_pool",
                    "sandbox": "sb-0a1b2c3d4e5f6g7h",
                    "version": "v-5f1c",
                    "labels": {"run": "42"},
                    "created_at": 1767225600.0,
                    "attached_at": 1767225600.002,
                    "expires_at": 1767229200.002,
                    "ttl_s": 3600.0,
                    "idle_timeout_s": None,
                    "ended_at": None,
                    "end_reason": None,
                    "end_detail": None,
                    "queue": None,
                    "timings_ms": {"auth": 0.3, "claim": 0.5, "bind": 0.7, "bound": 0.3, "total": 1.9},
                }
            ]
        },
    )

    id: str
    tenant: str
    pool: str
    template: str | None
    state: str
    start: str | None
    start_reason: str | None
    sandbox: str | None
    version: str | None
    labels: dict[str, str]
    created_at: float
    attached_at: float | None
    expires_at: float | None
    ttl_s: float
    idle_timeout_s: float | None
    ended_at: float | None
    end_reason: str | None
    end_detail: str | None
    queue: QueueOut | None
    timings_ms: dict[str, float] | None


class SessionsOut(Out):
    sessions: list[SessionOut]


def session_out(
    session: Session,
    template: str | None,
    reader: TenantId,
    *,
    progress: Progress | None = None,
    timings_ms: Mapping[str, float] | None = None,
) -> SessionOut:
    queue = None
    if progress is not None:
        queue = QueueOut(position=progress.position, pool_building=progress.pool_building, step=progress.step)
    return SessionOut(
        id=session.id,
        tenant=session.tenant,
        pool=shown_name(session.pool, reader),
        template=None if template is None else shown_name(template, reader),
        state=session.state,
        start=session.start,
        start_reason=session.start_reason,
        sandbox=session.sandbox,
        version=session.version,
        labels=dict(session.labels),
        created_at=session.created_at,
        attached_at=session.attached_at,
        expires_at=session.expires_at,
        ttl_s=session.ttl_s,
        idle_timeout_s=session.idle_timeout_s,
        ended_at=session.ended_at,
        end_reason=session.end_reason,
        end_detail=session.end_detail,
        queue=queue,
        timings_ms=None if timings_ms is None else dict(timings_ms),
    )
