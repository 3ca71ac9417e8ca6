"""What services tell whoever measures them: one small protocol, and one that listens to nothing."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Called often and from the event loop: must not block or raise."""

    def step_duration(self, step: str, seconds: float, ok: bool) -> None:
        """One step of making, destroying or building a sandbox ended. ``step`` is one of a few fixed names."""
        ...

    def plan_duration(self, seconds: float, actions: int) -> None:
        """One observe → plan → apply ended."""
        ...


class Unobserved:
    """For tests and tools that measure nothing."""

    def step_duration(self, step: str, seconds: float, ok: bool) -> None: ...

    def plan_duration(self, seconds: float, actions: int) -> None: ...
