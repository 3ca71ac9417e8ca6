"""Whether the sandbox may be handed out: true once every part of it is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from agents.wire import Ready


class Readiness:
    """Parts by name, each a function that tells its state: ``ready``, ``starting`` or ``failed: …``."""

    def __init__(self, parts: Mapping[str, Callable[[], str]]) -> None:
        self._parts = dict(parts)
        self._started = time.monotonic()
        self._waiting: set[asyncio.Future[None]] = set()

    def describe(self) -> Ready:
        states = {name: state() for name, state in self._parts.items()}
        return Ready(
            ready=all(state == "ready" for state in states.values()),
            parts=states,
            uptime_s=time.monotonic() - self._started,
        )

    def changed(self) -> None:
        """To be called when a part's state has changed: waiters look again."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, within_s: float) -> Ready:
        """Return once ready, once a part has failed (it will not become ready), or when time is up."""
        deadline = time.monotonic() + within_s
        while True:
            found = self.describe()
            left_s = deadline - time.monotonic()
            failed = any(state.startswith("failed") for state in found.parts.values())
            if found.ready or failed or left_s <= 0:
                return found
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            await asyncio.wait({waiter}, timeout=left_s)
            self._waiting.discard(waiter)
