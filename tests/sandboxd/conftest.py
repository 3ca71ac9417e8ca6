"""Fixtures: a daemon for each test, with real control groups where the machine can delegate them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.sandboxd.daemon import Daemon, can_delegate, running


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    async with running() as started:
        yield started


@pytest.fixture
async def grouped() -> AsyncIterator[Daemon]:
    """A daemon with delegated control groups; skips where they cannot be had."""
    if not can_delegate():
        pytest.skip("needs root and a writable cgroup v1 hierarchy")
    async with running() as started:
        yield started
