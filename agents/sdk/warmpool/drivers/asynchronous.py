"""The asyncio driver."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from warmpool.config import Config
from warmpool.drivers.common import (
    FAILURES,
    PIECE_BYTES,
    check_open,
    check_size,
    client_settings,
    reason_of,
    request_arguments,
)
from warmpool.effects import Call, Effect, Emit, Flow, Now, Open, Read, Reply, Send, Shut, Sleep

T = TypeVar("T")


class AsyncDriver:
    """For asyncio; belongs to the event loop it is first used in."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._client = httpx.AsyncClient(**client_settings(config))

    async def close(self) -> None:
        await self._client.aclose()

    async def run(self, flow: Flow[T], emit: Callable[[Any], object] | None = None) -> T:
        hands = _AsyncHands(self)
        value: Any = None
        failed: BaseException | None = None
        try:
            while True:
                try:
                    effect = flow.send(value) if failed is None else flow.throw(failed)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                value, failed = None, None
                try:
                    if isinstance(effect, Emit):
                        answer = emit(effect.value) if emit is not None else None
                        if inspect.isawaitable(answer):
                            await answer
                    else:
                        value = await hands.do(effect)
                except BaseException as error:
                    failed = error
        finally:
            await hands.shut()

    async def iterate(self, flow: Flow[Any]) -> AsyncIterator[Any]:
        hands = _AsyncHands(self)
        value: Any = None
        failed: BaseException | None = None
        try:
            while True:
                try:
                    effect = flow.send(value) if failed is None else flow.throw(failed)
                except StopIteration:
                    return
                value, failed = None, None
                if isinstance(effect, Emit):
                    yield effect.value
                    continue
                try:
                    value = await hands.do(effect)
                except BaseException as error:
                    failed = error
        finally:
            await hands.shut()
            flow.close()


class _AsyncHands:
    """As ``_SyncHands``, for asyncio."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._client = driver._client
        self._config = driver.config
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def do(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return await self._send(effect.call)
        if isinstance(effect, Read):
            return await self._read()
        if isinstance(effect, Open):
            return await self._open(effect)
        if isinstance(effect, Shut):
            return await self.shut()
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds * (1 + effect.jitter * random.random()))
        assert isinstance(effect, Now)
        return time.monotonic()

    async def _send(self, call: Call[Any]) -> Reply:
        check_open(self._client)
        arguments = request_arguments(call, self._config)
        arguments["content"] = _async_content(arguments["content"])
        try:
            async with self._client.stream(**arguments) as response:
                return await self._whole(call, response)
        except FAILURES as error:
            raise reason_of(error, self._config) from error

    async def _whole(self, call: Call[Any], response: httpx.Response) -> Reply:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            check_size(call, size)
        return Reply(response.status_code, response.headers, b"".join(parts))

    async def _open(self, effect: Open) -> Reply:
        await self.shut()
        check_open(self._client)
        try:
            request = self._client.build_request(**request_arguments(effect.call, self._config, effect.idle_s))
            response = await self._client.send(request, stream=True)
            self._response = response
            if response.status_code != 200:
                return await self._whole(effect.call, response)
        except FAILURES as error:
            raise reason_of(error, self._config) from error
        self._pieces = response.aiter_bytes()
        return Reply(response.status_code, response.headers, b"")

    async def _read(self) -> bytes | None:
        if self._pieces is None:
            return None
        try:
            return await self._pieces.__anext__()
        except StopAsyncIteration:
            return None
        except FAILURES as error:
            raise reason_of(error, self._config) from error

    async def shut(self) -> None:
        if self._response is not None:
            response, self._response, self._pieces = self._response, None, None
            with suppress(*FAILURES):
                await response.aclose()


def _async_content(content: Any) -> Any:
    """Files and plain iterables as an asynchronous iterable; reading them happens off the event loop."""
    if content is None or isinstance(content, (bytes, AsyncIterable)):
        return content
    if hasattr(content, "read"):
        return _pieces_of(lambda: content.read(PIECE_BYTES) or None)
    pieces = iter(content)
    return _pieces_of(lambda: next(pieces, None))


async def _pieces_of(read: Callable[[], bytes | None]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(read)) is not None:
        yield piece
