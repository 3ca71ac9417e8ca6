"""The queue port. A job is a name and text arguments; a job id that is queued or running is not queued twice."""

from __future__ import annotations

from typing import Literal, Protocol

QueueName = Literal["urgent", "refill", "retire", "build"]
JobName = Literal["provision_sandbox", "retire_sandbox", "build_version"]


class Queue(Protocol):
    async def put(self, queue: QueueName, job: JobName, *args: str, job_id: str, timeout_s: float) -> bool:
        """False when a job of this id is already queued or running. Retryable ``store_unavailable``."""
        ...

    async def close(self) -> None: ...
