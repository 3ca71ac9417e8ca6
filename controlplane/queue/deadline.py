"""The time limit of the job that runs in this process.

RQ interrupts jobs by a signal, whose exception an event loop may swallow, or which may hit the loop rather
than the job. So the limit is only noted here, and who runs the job on a loop cancels it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class _Job:
    """A worker runs one job at a time."""

    ends_at: float | None = None


def remaining_s() -> float | None:
    """Seconds that the present job has left, below 0 when it is late; None without a limit."""
    return None if _Job.ends_at is None else _Job.ends_at - time.monotonic()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    _Job.ends_at = time.monotonic() + seconds
    try:
        yield
    finally:
        _Job.ends_at = None
