"""The blocking driver."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
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


class SyncDriver:
    """Blocking; may be used by several threads."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._client = httpx.Client(**client_settings(config))

    def close(self) -> None:
        self._client.close()

    def run(self, flow: Flow[T], emit: Callable[[Any], object] | None = None) -> T:
        hands = _SyncHands(self)
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
                        if emit is not None:
                            emit(effect.value)
                    else:
                        value = hands.do(effect)
                except BaseException as error:
                    failed = error
        finally:
            hands.shut()

    def iterate(self, flow: Flow[Any]) -> Iterator[Any]:
        hands = _SyncHands(self)
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
                    value = hands.do(effect)
                except BaseException as error:
                    failed = error
        finally:
            hands.shut()
            flow.close()


class _SyncHands:
    """Carries out single effects; holds the one open stream of a flow."""

    def __init__(self, driver: SyncDriver) -> None:
        self._client = driver._client
        self._config = driver.config
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def do(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return self._send(effect.call)
        if isinstance(effect, Read):
            return self._read()
        if isinstance(effect, Open):
            return self._open(effect)
        if isinstance(effect, Shut):
            return self.shut()
        if isinstance(effect, Sleep):
            return time.sleep(effect.seconds * (1 + effect.jitter * random.random()))
        assert isinstance(effect, Now)
        return time.monotonic()

    def _send(self, call: Call[Any]) -> Reply:
        check_open(self._client)
        arguments = request_arguments(call, self._config)
        if hasattr(arguments["content"], "read"):
            # Piece by piece: httpx would take the size that the system reports, which for a pipe is 0.
            arguments["content"] = _pieces_of(arguments["content"])
        try:
            with self._client.stream(**arguments) as response:
                return self._whole(call, response)
        except FAILURES as error:
            raise reason_of(error, self._config) from error

    def _whole(self, call: Call[Any], response: httpx.Response) -> Reply:
        parts, size = [], 0
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            check_size(call, size)
        return Reply(response.status_code, response.headers, b"".join(parts))

    def _open(self, effect: Open) -> Reply:
        self.shut()
        check_open(self._client)
        try:
            request = self._client.build_request(**request_arguments(effect.call, self._config, effect.idle_s))
            response = self._client.send(request, stream=True)
            self._response = response
            if response.status_code != 200:
                return self._whole(effect.call, response)
        except FAILURES as error:
            raise reason_of(error, self._config) from error
        self._pieces = response.iter_bytes()
        return Reply(response.status_code, response.headers, b"")

    def _read(self) -> bytes | None:
        try:
            return next(self._pieces, None)
        except FAILURES as error:
            raise reason_of(error, self._config) from error

    def shut(self) -> None:
        if self._response is not None:
            with suppress(*FAILURES):
                self._response.close()
            self._response = None


def _pieces_of(file: Any) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece
