from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from .parts import Gateway


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway() as built:
        yield built
