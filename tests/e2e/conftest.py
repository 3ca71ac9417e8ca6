"""One deployment that most tests share: making one takes seconds, so each test uses pools of its own name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live import Live, live, state_folder
from tests.gitserver.loading import GitServer, make_repository


@dataclass(frozen=True)
class Source:
    """A repository as it is served; ``root``: the folder of all that the server serves."""

    url: str
    commit: str
    root: Path

    @property
    def repository(self) -> dict[str, str]:
        return {"url": self.url, "ref": "main"}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    root = tmp_path_factory.mktemp("served")
    commit = make_repository(root / "demo")
    with GitServer(root) as server:
        yield Source(url=f"{server.url}/demo", commit=commit, root=root)


@pytest.fixture(scope="session")
def shared() -> Iterator[Live]:
    """The shared deployment. A test that ends its processes must leave it answering.

    Its state folder has a space in its name, as folders of users have."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    settings: dict[str, Any] = {
        "WARMPOOL_POOL__BACKOFF_BASE_S": "0.5",
        "WARMPOOL_POOL__MAX_FAILURES": "2",
        "WARMPOOL_API__MAX_BODY_BYTES": "65536",
    }
    with state_folder() as folder, live(f"e2e-{os.getpid()}", folder / "a b", settings=settings) as deployment:
        yield deployment
