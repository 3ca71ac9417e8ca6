"""Sizes of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one sandbox may use at most. ``disk_bytes`` None: no limit asked for."""

    memory_bytes: int = 1 * GIB
    cpu_cores: float = 1.0
    pids: int = 512
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What all sandboxes together may use; None means no limit of that kind."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    sandboxes: int | None = None
