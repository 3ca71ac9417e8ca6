"""The global budget while a plan spends it."""

from __future__ import annotations

from controlplane.model.resources import Budget, Resources
from controlplane.model.sandbox import Sandbox

_UNLIMITED = float("inf")
# Sums of fractional cores must not refuse a sandbox for the last bit of a float.
_SLACK = 1e-6


class Ledger:
    """``now``: free at this moment. ``soon``: free once everything that drains is gone, less what more urgent
    needs have reserved. A start needs both: so that it never overcommits, and never takes what was freed
    for somebody more urgent. Each is [memory_bytes, cpu_cores, sandboxes]."""

    __slots__ = ("now", "soon", "total")

    def __init__(self, budget: Budget, used: list[float], freeing: list[float]) -> None:
        self.total: list[float] = [
            _UNLIMITED if limit is None else limit
            for limit in (budget.memory_bytes, budget.cpu_cores, budget.sandboxes)
        ]
        self.now = [limit - taken for limit, taken in zip(self.total, used, strict=True)]
        self.soon = [free + coming for free, coming in zip(self.now, freeing, strict=True)]

    def fits_ever(self, size: Resources) -> bool:
        return _fits(self.total, size.memory_bytes, size.cpu_cores)

    def fits_now(self, size: Resources) -> bool:
        return _fits(self.now, size.memory_bytes, size.cpu_cores) and self.fits_soon(size)

    def fits_soon(self, size: Resources, extra: tuple[float, float, int] = (0, 0, 0)) -> bool:
        memory, cpu, count = self.soon
        return _fits([memory + extra[0], cpu + extra[1], count + extra[2]], size.memory_bytes, size.cpu_cores)

    def take(self, size: Resources) -> None:
        _add(self.now, -size.memory_bytes, -size.cpu_cores, -1)
        self.reserve(size)

    def reserve(self, size: Resources) -> None:
        _add(self.soon, -size.memory_bytes, -size.cpu_cores, -1)

    def will_free(self, sandbox: Sandbox) -> None:
        _add(self.soon, sandbox.memory_bytes, sandbox.cpu_cores, 1)

    def overdrawn(self) -> bool:
        return any(free < -_SLACK for free in self.soon)


def _fits(free: list[float], memory_bytes: float, cpu_cores: float) -> bool:
    return free[0] >= memory_bytes and free[1] + _SLACK >= cpu_cores and free[2] >= 1


def _add(vector: list[float], memory_bytes: float, cpu_cores: float, count: int) -> None:
    vector[0] += memory_bytes
    vector[1] += cpu_cores
    vector[2] += count
