"""Build logs: one append-only text for each step of a build, readable while it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from controlplane.ids import BuildId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """``text`` starts at byte ``offset`` of the step's log; read on at ``next_offset``. ``offset`` is later than
    asked for when what stands before it was not kept."""

    step: str
    offset: int
    next_offset: int
    text: str


class BuildLogs(Protocol):
    async def append(self, build: BuildId, step: str, text: str) -> None:
        """Retryable ``log_not_written`` when the disk is full."""
        ...

    async def restart(self, build: BuildId, step: str) -> None:
        """Empty the step's log: the step begins again, or its output is replayed from the start."""
        ...

    async def read(self, build: BuildId, step: str, offset: int, limit_bytes: int) -> LogChunk:
        """What is there from ``offset`` on, at most about ``limit_bytes``; empty text at the end, or when
        there is no such log."""
        ...

    async def steps(self, build: BuildId) -> list[str]:
        """Steps that have a log, in the order in which they began."""
        ...

    async def builds(self) -> dict[BuildId, float]:
        """Builds that have logs, with the time of their last change (epoch seconds)."""
        ...

    async def delete(self, build: BuildId) -> None:
        """Missing: success."""
        ...
