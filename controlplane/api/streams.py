"""Streamed answers: begun only once their source gave something, cut when it fails, closed when the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from starlette.responses import Response, StreamingResponse

FIRST_S = 0.25


async def started_stream(source: AsyncIterator[bytes], media_type: str) -> Response:
    """An answer that streams ``source``. What goes wrong at its beginning is raised, and so becomes a problem;
    what goes wrong later cuts the connection.

    A source that is silent at first (a quiet command) begins its answer after ``FIRST_S`` all the same."""
    first = asyncio.ensure_future(_next(source))
    try:
        await asyncio.wait({first}, timeout=FIRST_S)
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        raise
    return StreamingResponse(_from(first, source), media_type=media_type, headers={"Cache-Control": "no-store"})


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    """The next piece; None at the end."""
    try:
        return await anext(source)
    except StopAsyncIteration:
        return None


async def _from(first: asyncio.Task[bytes | None], source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(cast(AsyncGenerator[bytes], source)):
        try:
            piece = await first
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
        while piece is not None:
            yield piece
            piece = await _next(source)
