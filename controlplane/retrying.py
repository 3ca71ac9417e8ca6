"""Trying again: short retries within one step, and how long to wait after a failed attempt.

Belongs here: the two rules, used by provisioning, builds and the reaper. Does not belong here: counting
failures (the store's lineages do).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from controlplane.errors import Retryable

T = TypeVar("T")


def backoff_s(failures: int, base_s: float, max_s: float) -> float:
    """Seconds to wait after the ``failures``-th failure in a row: ``base_s`` doubled each time, at most
    ``max_s``; 0 without a failure."""
    if failures <= 0:
        return 0.0
    # The exponent is bounded, so that a long row of failures can't overflow a float.
    return float(min(max_s, base_s * 2 ** min(failures - 1, 60)))


async def retried(call: Callable[[], Awaitable[T]], *, within_s: float, what: str) -> T:
    """The result of ``call``, tried again with exponential jitter while it raises Retryable, for ``within_s``
    seconds in all; then the last Retryable. A single call that takes longer: Retryable ``step_timeout``."""
    try:
        async with asyncio.timeout(within_s):
            async for attempt in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception_type(Retryable),
                wait=tenacity.wait_exponential_jitter(multiplier=0.05, max=2.0, jitter=0.05),
                stop=tenacity.stop_after_delay(within_s),
                reraise=True,
            ):
                with attempt:
                    return await call()
    except TimeoutError as error:
        raise Retryable("step_timeout", f"{what} did not end within {within_s:g} s.") from error
    raise AssertionError("tenacity returns or raises")
