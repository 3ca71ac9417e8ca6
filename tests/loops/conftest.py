from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.store.redis_store import RedisStore
from tests.provisioning.plant import Plant


@pytest.fixture
def plant(store: RedisStore, deployment: str, tmp_path: Path) -> Plant:
    return Plant(store, deployment, tmp_path)
