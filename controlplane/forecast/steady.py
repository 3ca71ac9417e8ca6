"""No guess at all: each pool keeps its min_ready, at most its max_total."""

from __future__ import annotations

from controlplane.model.actions import Demand
from controlplane.model.template import Pool


class Steady:
    """The forecast of a deployment without history."""

    def demand(self, pool: Pool, now: float) -> Demand | None:
        return Demand(ready=min(pool.min_ready, pool.max_total), source="min_ready")
