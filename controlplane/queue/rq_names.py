"""Names in the server, so that several deployments share one without touching each other's."""

from __future__ import annotations

# JSON rather than pickle: who can write to the store must not thereby run code in workers.
SERIALIZER = "json"


def queue_name(deployment: str, queue: str) -> str:
    return f"warmpool-{deployment}-{queue}"


def job_name(deployment: str, job_id: str) -> str:
    return f"{deployment}-{job_id}"


def pulse_key(deployment: str, worker: str) -> str:
    """Lives as long as the worker does, and a few seconds longer."""
    return f"warmpool:{deployment}:worker:{worker}"
