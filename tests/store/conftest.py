from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from controlplane.store.redis_store import RedisStore
from tests.store.invariants import check_invariants
from tests.store.rewind import Rewind, rewinding
from tests.store.world import World, new_world


@pytest.fixture
async def world(store: RedisStore, valkey_url: str, deployment: str) -> AsyncIterator[World]:
    """A published template with an empty pool. At the end of each test all indexes agree with the records."""
    made = await new_world(store)
    yield made
    await check_invariants(valkey_url, deployment)


@pytest.fixture
async def rewind(valkey_url: str, deployment: str) -> AsyncIterator[Rewind]:
    async with rewinding(valkey_url, deployment) as made:
        yield made
