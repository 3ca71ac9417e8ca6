"""The services of this process, and the one event loop that its jobs share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from controlplane.errors import Permanent
from controlplane.provisioning import Provisioning
from controlplane.templates import Builder

T = TypeVar("T")
_CANCEL_S = 10.0


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
    """One service call on the process's loop. Permanent ``not_configured`` before ``configure``.

    When the queue's time limit interrupts it, the call is cancelled and given a little time to end."""
    context, runner = _Process.context, _Process.runner
    if context is None or runner is None:
        raise Permanent("not_configured", "This worker has no services: jobs.configure was not called.")
    loop = runner.get_loop()
    task = loop.create_task(work(context))
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():
            task.cancel()
            loop.run_until_complete(asyncio.wait({task}, timeout=_CANCEL_S))
        raise


async def _awaited(close: Callable[[], Awaitable[None]]) -> None:
    await close()
