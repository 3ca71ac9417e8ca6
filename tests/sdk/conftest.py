"""A served contract for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.contract import KEY, Served, serving
from warmpool import Sandbox


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture
def served(server: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """The contract on a socket, as new, and an environment that points to it."""
    server.reset()
    monkeypatch.setenv("WARMPOOL_API_URL", server.url)
    monkeypatch.setenv("WARMPOOL_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WARMPOOL_CREDENTIALS", raising=False)
    yield server
    server.reset()


@pytest.fixture
def sandbox(served: Served) -> Iterator[Sandbox]:
    made = Sandbox.create("demo")
    yield made
    made.close()
