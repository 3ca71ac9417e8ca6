"""How long a simulated step takes: log-normal around a median, repeatable by its seed."""

from __future__ import annotations

import asyncio
import math
import random


class LogNormal:
    """Durations in seconds with the given median; ``sigma`` 0 makes every one equal to it.

    Start times of containers and virtual machines are right-skewed; with sigma 0.25 the p99 is 1.8 medians.
    """

    def __init__(self, median_s: float, *, sigma: float = 0.25, seed: int = 0) -> None:
        if median_s < 0 or sigma < 0:
            raise ValueError("median_s and sigma must not be negative")
        self.median_s = median_s
        self._sigma = sigma
        self._random = random.Random(seed)

    def sample(self) -> float:
        if self.median_s == 0 or self._sigma == 0:
            return self.median_s
        return self._random.lognormvariate(math.log(self.median_s), self._sigma)

    async def pass_by(self, share: float = 1.0) -> None:
        """Let one sample, times ``share``, pass. A duration of 0 does not yield to the loop at all."""
        duration = self.sample() * share
        if duration > 0:
            await asyncio.sleep(duration)
