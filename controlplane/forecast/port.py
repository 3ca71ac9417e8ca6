"""The forecast port."""

from __future__ import annotations

from typing import Protocol

from controlplane.model.actions import Demand
from controlplane.model.template import Pool


class Forecast(Protocol):
    def demand(self, pool: Pool, now: float) -> Demand | None:
        """Ready sandboxes worth keeping for the pool at ``now`` (epoch seconds); None: no opinion, so the
        pool's own min_ready decides."""
        ...
