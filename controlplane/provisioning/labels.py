"""The immutable labels of a sandbox: enough to rebuild its record from what runs."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.ids import LineageKey, PoolKey, SandboxId, TenantId, VersionId
from controlplane.model.sandbox import Sandbox, SandboxState

SESSION = "session"


def session_labels(sandbox: Sandbox, deployment: str) -> dict[str, str]:
    return {
        "deployment": deployment,
        "purpose": SESSION,
        "sandbox": sandbox.id,
        "pool": sandbox.pool,
        "pool_uid": sandbox.pool_uid,
        "tenant": sandbox.tenant,
        "lineage": sandbox.lineage,
        "version": sandbox.version,
        "revision": str(sandbox.revision),
        "memory_bytes": str(sandbox.memory_bytes),
        "cpu_cores": repr(sandbox.cpu_cores),
        "pids": str(sandbox.pids),
        "disk_bytes": "" if sandbox.disk_bytes is None else str(sandbox.disk_bytes),
    }


def record_from_labels(
    sandbox: SandboxId,
    labels: Mapping[str, str],
    *,
    runtime: str,
    door: str,
    state: SandboxState,
    now: float,
    max_age_s: float,
) -> Sandbox | None:
    """The record that a running sandbox must have had; None when its labels do not tell."""
    try:
        return Sandbox(
            id=sandbox,
            pool=PoolKey(labels["pool"]),
            pool_uid=labels["pool_uid"],
            tenant=TenantId(labels["tenant"]),
            lineage=LineageKey(labels["lineage"]),
            version=VersionId(labels["version"]),
            revision=int(labels["revision"]),
            state=state,
            runtime=runtime,
            memory_bytes=int(labels["memory_bytes"]),
            cpu_cores=float(labels["cpu_cores"]),
            pids=int(labels["pids"]),
            disk_bytes=int(labels["disk_bytes"]) if labels["disk_bytes"] else None,
            door=door,
            created_at=now,
            state_since=now,
            ready_at=now,
            expires_at=now + max_age_s,
            step="adopted",
            reason="found running without a record",
        )
    except (KeyError, ValueError):
        return None
