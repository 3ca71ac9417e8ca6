"""The metrics page: this process's own registry, and values that the deployment shares, read from the store."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from controlplane.clock import Clock
from controlplane.errors import WarmpoolError
from controlplane.ids import PoolKey
from controlplane.metrics import (
    EVENTS_TOTAL,
    POOL_DESIRED,
    POOL_SANDBOXES,
    POOL_WAITING,
    PROVISION_STEP_SECONDS,
    Metrics,
)
from controlplane.model.actions import Observed
from controlplane.planning.explain import decode_decision
from controlplane.store.port import Store

log = logging.getLogger(__name__)
KEEP_S = 1.0
MAX_POOLS = 2000
STATES = ("ready", "building", "claimed", "draining", "failed")
_STEP = "provision_step_seconds_"


class SharedValues:
    """The last reading of the store, kept for ``KEEP_S``: scrapers in parallel cost one reading."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._until = 0.0
        self._families: list[Metric] = []
        self._reading = asyncio.Lock()

    async def families(self) -> list[Metric]:
        """Raises what the store raises."""
        async with self._reading:
            if self._clock.monotonic() >= self._until:
                observed = await self._store.observe()
                desired = await self._desired(observed)
                counters = await self._store.counters()
                self._families = [*_pools(observed, desired), *_totals(counters)]
                self._until = self._clock.monotonic() + KEEP_S
            return self._families

    async def _desired(self, observed: Observed) -> dict[PoolKey, int]:
        pools = [pool.key for pool in observed.pools[:MAX_POOLS]]
        texts = await asyncio.gather(*(self._store.explained(key) for key in pools))
        decisions = {key: decode_decision(text)[0] for key, text in zip(pools, texts, strict=True) if text is not None}
        return {key: decision.target_ready for key, decision in decisions.items() if decision is not None}


async def metrics_page(shared: SharedValues, metrics: Metrics) -> tuple[bytes, str]:
    """The page and its media type; without a store, the process's own values and ``warmpool_store_up 0``."""
    registry = CollectorRegistry()
    try:
        registry.register(_Families(await shared.families()))
        metrics.store_up.set(1)
    except WarmpoolError as error:
        log.warning("shared metrics are missing: %s", error)
        metrics.store_up.set(0)
    return generate_latest(metrics.registry) + generate_latest(registry), CONTENT_TYPE_LATEST


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _pools(observed: Observed, desired: Mapping[PoolKey, int]) -> Iterator[Metric]:
    counts: Counter[tuple[str, str]] = Counter((sandbox.pool, sandbox.state) for sandbox in observed.sandboxes)
    sandboxes = GaugeMetricFamily(POOL_SANDBOXES.name, POOL_SANDBOXES.help, labels=POOL_SANDBOXES.labels)
    waiting = GaugeMetricFamily(POOL_WAITING.name, POOL_WAITING.help, labels=POOL_WAITING.labels)
    wanted = GaugeMetricFamily(POOL_DESIRED.name, POOL_DESIRED.help, labels=POOL_DESIRED.labels)
    for pool in observed.pools[:MAX_POOLS]:
        for state in STATES:
            sandboxes.add_metric((pool.key, state), counts[(pool.key, state)])
        waiting.add_metric((pool.key,), observed.waiting.get(pool.key, 0))
        if pool.key in desired:
            wanted.add_metric((pool.key,), desired[pool.key])
    yield from (sandboxes, waiting, wanted)


def _totals(counters: Mapping[str, float]) -> Iterator[Metric]:
    steps = SummaryMetricFamily(
        PROVISION_STEP_SECONDS.name, PROVISION_STEP_SECONDS.help, labels=PROVISION_STEP_SECONDS.labels
    )
    others = CounterMetricFamily(EVENTS_TOTAL.name, EVENTS_TOTAL.help, labels=EVENTS_TOTAL.labels)
    for name, value in sorted(counters.items()):
        if name.startswith(_STEP + "count:"):
            step, _, ok = name.removeprefix(_STEP + "count:").rpartition(":")
            steps.add_metric((step, ok), int(value), counters.get(f"{_STEP}sum:{step}:{ok}", 0.0))
        elif not name.startswith(_STEP):
            others.add_metric((name,), value)
    yield from (steps, others)
