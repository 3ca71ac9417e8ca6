"""The services of this process, and the one event loop that its jobs share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from controlplane.errors import Permanent
from controlplane.provisioning import Provisioning
from controlplane.queue.deadline import remaining_s
from controlplane.templates import Builder

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """``close`` releases what the services hold (connections); awaited once, by ``shut_down``."""

    provisioning: Provisioning
    builder: Builder
    close: Callable[[], Awaitable[None]] | None = None


class _Process:
    """One a process: connections that a job opened stay usable for the next, since the loop stays."""

    context: JobContext | None = None
    runner: asyncio.Runner | None = None


def configure(make: Callable[[], Coroutine[Any, Any, JobContext]]) -> None:
    """Make the context, on the loop on which all jobs will run."""
    if _Process.runner is None:
        _Process.runner = asyncio.Runner()
    _Process.context = _Process.runner.run(make())


def shut_down() -> None:
    """Release the context and the loop. Nothing configured: no effect."""
    context, runner = _Process.context, _Process.runner
    _Process.context = _Process.runner = None
    if runner is not None:
        if context is not None and context.close is not None:
            runner.run(_awaited(context.close))
        runner.close()


def run(work: Callable[[JobContext], Coroutine[Any, Any, T]]) -> T:
    """One service call on the process's loop, cancelled when the queue's time limit for the job is over
    (TimeoutError). Permanent ``not_configured`` before ``configure``."""
    context, runner = _Process.context, _Process.runner
    if context is None or runner is None:
        raise Permanent("not_configured", "This worker has no services: jobs.configure was not called.")
    return runner.get_loop().run_until_complete(_bounded(work(context)))


async def _bounded(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(remaining_s()):
        return await work


async def _awaited(close: Callable[[], Awaitable[None]]) -> None:
    await close()
