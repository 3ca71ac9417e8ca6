"""One definition of a method for both flavours.

A class of flows has methods that return a ``Flow``; ``@verb`` turns each into a method that runs it: at
once on a class with ``Sync``, as a coroutine on one with ``Async``. ``@stream`` does so for flows whose
emitted values are the result, as an iterator. Signatures and docstrings stay those of the one definition.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from warmpool.effects import Flow

if TYPE_CHECKING:
    from warmpool.drivers import AsyncDriver, SyncDriver

P = ParamSpec("P")
T = TypeVar("T")


class Sync:
    """Base of the synchronous flavour of a class of flows."""

    _driver: SyncDriver


class Async:
    """Base of the asynchronous flavour of a class of flows."""

    _driver: AsyncDriver


class verb(Generic[P, T]):
    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self._flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, instance: Sync, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Async, owner: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], Flow[T]]: ...
    def __get__(self, instance: Sync | Async | None, owner: type) -> Any:
        if instance is None:
            return self._flow
        flow = self._flow

        if isinstance(instance, Async):
            driver = instance._driver

            @functools.wraps(flow)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> T:
                return await driver.run(flow(instance, *args, **kwargs))

            return call_async

        sync_driver = instance._driver

        @functools.wraps(flow)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return sync_driver.run(flow(instance, *args, **kwargs))

        return call


class stream(Generic[P, T]):
    """Like ``verb``; T is the type of the emitted values, named at the definition: ``stream[..., Event]``."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[None]], emits: type[T]) -> None:
        self._flow = flow
        self.emits = emits
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, instance: Sync, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: Async, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], Flow[None]]: ...
    def __get__(self, instance: Sync | Async | None, owner: type) -> Any:
        if instance is None:
            return self._flow
        flow = self._flow

        @functools.wraps(flow)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return instance._driver.iterate(flow(instance, *args, **kwargs))

        return call


def stream_of(emits: type[T]) -> Callable[[Callable[Concatenate[Any, P], Flow[None]]], stream[P, T]]:
    """``@stream_of(Event)``: the flow emits Events."""
    return lambda flow: stream(flow, emits)
