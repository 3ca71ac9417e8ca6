"""One folder and one engine for all contract tests of a runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import docker_engine
from tests.runtime.stage import short_folder


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with docker_engine() as address:
        yield address


@pytest.fixture(scope="session")
def shared_folder() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with short_folder() as folder:
        yield folder
