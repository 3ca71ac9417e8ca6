"""Durations of steps come together in the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controlplane.errors import Retryable
from controlplane.metrics import provision_step_counter
from controlplane.observer import CountingObserver
from controlplane.store.redis_store import RedisStore
from tests.provisioning.plant import Plant


async def test_steps_of_a_start_are_counted_with_their_seconds(
    store: RedisStore, deployment: str, tmp_path: Path
) -> None:
    plant = Plant(store, deployment, tmp_path)
    observer = CountingObserver(store.count, provision_step_counter)
    plant.provisioning._observer = observer
    await plant.add_demo(min_ready=2)
    await observer.settle()
    counters: Mapping[str, float] = await store.counters()
    assert counters[provision_step_counter("ready", True, "count")] == 2
    assert counters[provision_step_counter("ready", True, "sum")] > 0


async def test_a_store_that_is_away_fails_no_step() -> None:
    async def away(name: str, value: float) -> None:
        raise Retryable("store_unavailable", "The store can't be reached.")

    observer = CountingObserver(away, provision_step_counter)
    observer.step_duration("ready", 0.1, True)
    await observer.settle()
