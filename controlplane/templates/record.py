"""The record and logs of a build while it runs: progress, heartbeat, and lines that come from anywhere."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from controlplane.artifacts.port import BuildLogs
from controlplane.clock import Clock
from controlplane.errors import Retryable
from controlplane.model.template import Build, BuildStep
from controlplane.store.port import Store

log = logging.getLogger(__name__)


class LiveBuild:
    """One writer of one build. Raises Conflict ``build_ended`` from any change once somebody else ended it."""

    def __init__(self, store: Store, logs: BuildLogs, clock: Clock, build: Build) -> None:
        self.build = build
        self._store = store
        self._logs = logs
        self._clock = clock
        self._writing = asyncio.Lock()
        self._said: deque[tuple[str, str]] = deque()

    def step(self, name: str) -> BuildStep:
        return next(step for step in self.build.steps if step.name == name)

    async def change(self, **changes: Any) -> None:
        async with self._writing:
            self.build = replace(self.build, **changes)
            await self._store.update_build(self.build)

    async def change_step(self, name: str, **changes: Any) -> None:
        await self.change(
            steps=tuple(replace(step, **changes) if step.name == name else step for step in self.build.steps)
        )

    async def begin_step(self, name: str) -> None:
        """Its log starts empty: what a command printed before an interruption is replayed by sandboxd."""
        await self._logs.restart(self.build.id, name)
        began = self.step(name).started_at
        await self.change_step(
            name, state="running", started_at=self._clock.now() if began is None else began, error=None
        )

    async def end_step(self, name: str, state: str, *, exit_code: int | None = None, error: str | None = None) -> None:
        await self.flush()
        await self.change_step(name, state=state, ended_at=self._clock.now(), exit_code=exit_code, error=error)

    async def write(self, name: str, text: str) -> None:
        await self.flush()
        await self._logs.append(self.build.id, name, text)

    def say(self, name: str, line: str) -> None:
        """A line for a step's log, from any thread; kept with the next heartbeat or write."""
        self._said.append((name, line))

    async def flush(self) -> None:
        while self._said:
            name, line = self._said.popleft()
            await self._logs.append(self.build.id, name, line.rstrip("\n") + "\n")

    async def beating(self, work: Coroutine[Any, Any, None], every_s: float) -> None:
        """Run ``work`` with a heartbeat beside it; the heartbeat's Conflict ends the work too."""
        main = asyncio.create_task(work)
        beat = asyncio.create_task(self._beat(every_s))
        try:
            await asyncio.wait({main, beat}, return_when=asyncio.FIRST_COMPLETED)
            await (main if main.done() else beat)
        finally:
            for task in (main, beat):
                task.cancel()
            await asyncio.gather(main, beat, return_exceptions=True)

    async def _beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.flush()
                await self.change()
            except Retryable as error:
                log.warning("build %s: heartbeat not written: %s", self.build.id, error.message)
