"""One folder and one engine for all contract tests of a runtime."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import docker_engine
from tests.runtime.stage import CGROUP_PARENT, short_folder


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
    # What the runtimes keep for the next sandbox; not empty while another test run uses it.
    top = Path("/sys/fs/cgroup")
    for group in [*top.glob(f"*/{CGROUP_PARENT}/*/"), *top.glob(f"*/{CGROUP_PARENT}/")]:
        with contextlib.suppress(OSError):
            group.rmdir()
