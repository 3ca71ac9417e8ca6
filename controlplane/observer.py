"""What services tell whoever measures them: one small protocol, one that counts, and one that listens to nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from controlplane.errors import WarmpoolError

log = logging.getLogger(__name__)


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


class CountingObserver:
    """Adds up durations in the store, where the metrics of several processes come together.

    ``count`` is the store's; ``name`` gives the counter of a step's ``sum`` (seconds) or ``count``. Counting is
    done beside the work and must not fail it: what can't be counted is lost, with a line in the log.
    """

    def __init__(
        self, count: Callable[[str, float], Awaitable[None]], name: Callable[[str, bool, Literal["sum", "count"]], str]
    ) -> None:
        self._count = count
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    def step_duration(self, step: str, seconds: float, ok: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._add(step, seconds, ok))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def plan_duration(self, seconds: float, actions: int) -> None:
        """Only plans that decided something: there is one a second that did not."""
        if actions:
            self.step_duration("plan", seconds, True)

    async def settle(self) -> None:
        """Wait for what is still being counted: before the loop or the store is closed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _add(self, step: str, seconds: float, ok: bool) -> None:
        try:
            await self._count(self._name(step, ok, "sum"), seconds)
            await self._count(self._name(step, ok, "count"), 1.0)
        except WarmpoolError as error:
            log.info("a step's duration is not counted: %s", error.message)
