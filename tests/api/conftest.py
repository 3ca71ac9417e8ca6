from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from controlplane.store.redis_store import RedisStore
from tests.api.service import Api, running
from tests.store.world import World, new_world


@pytest.fixture
async def world(store: RedisStore) -> World:
    """Tenant acme with template and pool demo, one version published, no sandbox."""
    return await new_world(store)


@pytest.fixture
async def api(valkey_url: str, store: RedisStore, world: World, deployment: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with running(valkey_url, store, world, deployment, tmp_path) as made:
        yield made


@pytest.fixture
async def acme(api: Api) -> httpx.AsyncClient:
    """A client of tenant acme, role platform."""
    return await api.client()


@pytest.fixture
async def ops(api: Api) -> httpx.AsyncClient:
    return await api.client("operators", "ops")
