"""Pools, sandboxes, and what a runtime can do."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from controlplane.api.schemas.common import In, Out, ResourcesIn, ResourcesOut, resources_out, shown_name
from controlplane.api.schemas.templates import LineageOut, lineage_out
from controlplane.ids import TenantId
from controlplane.model.actions import PoolDecision
from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Lineage, Pool
from controlplane.runtime.port import Capabilities, Held
from controlplane.store.port import PoolCounts


class PoolIn(In):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"template": "demo", "min_ready": 2, "max_total": 10}]}
    )

    template: str = Field(description="A template's name; `tenant/name` for one that was shared.")
    ref: str | None = Field(default=None, description="Default: the template's own ref.")
    resources: ResourcesIn | None = Field(default=None, description="Default: the template's.")
    min_ready: int = Field(default=1, description="Ready sandboxes to keep.")
    max_total: int | None = Field(default=None, description="Most sandboxes, attached and starting ones included.")


class PinIn(In):
    ready: int | None = Field(description="Ready sandboxes to keep, over min_ready and forecast; null undoes it.")


class CountsOut(Out):
    ready: int
    building: int
    claimed: int
    draining: int
    failed: int
    waiting: int


class PoolOut(Out):
    name: str
    tenant: str
    key: str
    template: str
    ref: str | None
    resources: ResourcesOut
    min_ready: int
    max_total: int
    pinned_ready: int | None
    adhoc: bool = Field(description="Made by an attach to a template with a ref or resources of its own.")
    deleting: bool
    counts: CountsOut
    last_used_at: float | None
    current_version: str | None
    lineage: LineageOut | None


class PoolsOut(Out):
    pools: list[PoolOut]


class DecisionOut(Out):
    target_ready: int
    bound_by: str
    ready: int
    building: int
    claimed: int
    draining: int
    waiting: int
    reasons: list[str]


class ExplanationOut(Out):
    """Why a pool is sized as it is. No decision: the scheduler has not seen the pool yet."""

    pool: PoolOut
    decision: DecisionOut | None
    at: float | None
    lineage: LineageOut | None


class SandboxOut(Out):
    id: str
    pool: str
    tenant: str
    lineage: str
    version: str
    revision: int
    state: str
    runtime: str
    memory_bytes: int
    cpu_cores: float
    pids: int
    disk_bytes: int | None
    session: str | None
    created_at: float
    state_since: float
    ready_at: float | None
    expires_at: float | None
    step: str
    reason: str
    attempt: int


class SandboxesOut(Out):
    sandboxes: list[SandboxOut]


class HeldOut(Out):
    name: str
    held: bool
    how: str
    fix: str


class RuntimeOut(Out):
    """What the deployment's runtime can hold here, as its workers reported."""

    runtime: str
    usable: bool
    reason: str
    fix: str
    version: str
    limits: list[HeldOut]
    isolation: list[HeldOut]


def pool_out(
    pool: Pool, counts: PoolCounts, lineage: Lineage | None, last_used_at: float | None, reader: TenantId
) -> PoolOut:
    return PoolOut(
        name=shown_name(pool.key, reader),
        tenant=pool.tenant,
        key=pool.key,
        template=shown_name(pool.template, reader),
        ref=pool.ref,
        resources=resources_out(pool.resources),
        min_ready=pool.min_ready,
        max_total=pool.max_total,
        pinned_ready=pool.pinned_ready,
        adhoc=pool.adhoc,
        deleting=pool.deleting,
        counts=CountsOut(
            ready=counts.ready,
            building=counts.building,
            claimed=counts.claimed,
            draining=counts.draining,
            failed=counts.failed,
            waiting=counts.waiting,
        ),
        last_used_at=last_used_at,
        current_version=lineage.current if lineage else None,
        lineage=lineage_out(lineage) if lineage else None,
    )


def decision_out(decision: PoolDecision) -> DecisionOut:
    return DecisionOut(
        target_ready=decision.target_ready,
        bound_by=decision.bound_by,
        ready=decision.ready,
        building=decision.building,
        claimed=decision.claimed,
        draining=decision.draining,
        waiting=decision.waiting,
        reasons=list(decision.reasons),
    )


def sandbox_out(sandbox: Sandbox, reader: TenantId) -> SandboxOut:
    """Without its door: nobody but the control plane has business there."""
    return SandboxOut(
        id=sandbox.id,
        pool=shown_name(sandbox.pool, reader),
        tenant=sandbox.tenant,
        lineage=sandbox.lineage,
        version=sandbox.version,
        revision=sandbox.revision,
        state=sandbox.state,
        runtime=sandbox.runtime,
        memory_bytes=sandbox.memory_bytes,
        cpu_cores=sandbox.cpu_cores,
        pids=sandbox.pids,
        disk_bytes=sandbox.disk_bytes,
        session=sandbox.session,
        created_at=sandbox.created_at,
        state_since=sandbox.state_since,
        ready_at=sandbox.ready_at,
        expires_at=sandbox.expires_at,
        step=sandbox.step,
        reason=sandbox.reason,
        attempt=sandbox.attempt,
    )


def runtime_out(capabilities: Capabilities) -> RuntimeOut:
    return RuntimeOut(
        runtime=capabilities.runtime,
        usable=capabilities.usable,
        reason=capabilities.reason,
        fix=capabilities.fix,
        version=capabilities.version,
        limits=[_held(held) for held in capabilities.limits],
        isolation=[_held(held) for held in capabilities.isolation],
    )


def _held(held: Held) -> HeldOut:
    return HeldOut(name=held.name, held=held.held, how=held.how, fix=held.fix)
