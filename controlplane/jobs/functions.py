"""The jobs by name. Each may be repeated, and may be killed at any point."""

from __future__ import annotations

from controlplane.ids import BuildId, SandboxId
from controlplane.jobs.context import run


def provision_sandbox(sandbox_id: str) -> None:
    run(lambda context: context.provisioning.provision(SandboxId(sandbox_id)))


def retire_sandbox(sandbox_id: str) -> None:
    run(lambda context: context.provisioning.retire(SandboxId(sandbox_id)))


def build_version(build_id: str) -> None:
    run(lambda context: context.builder.build(BuildId(build_id)))
