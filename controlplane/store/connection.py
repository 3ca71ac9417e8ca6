"""The way to the server: connections, time limits, scripts, and its errors as errors of the project.

A call is sent again once if its connection broke, since every script may be repeated: a repeat finds its
own result. Calls for which that is not so say ``repeat=False``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import msgspec
import redis
import redis.asyncio as aredis
from redis import exceptions as vendor
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from controlplane.errors import Conflict, Denied, NotFound, Permanent, Retryable, WarmpoolError
from controlplane.store.codec import encode
from controlplane.store.scripts import Script, Scripts

_MARK = "WARMPOOL "
_KINDS: dict[str, type[WarmpoolError]] = {
    "conflict": Conflict,
    "denied": Denied,
    "not_found": NotFound,
    "permanent": Permanent,
}
_PASSING = (
    vendor.ReadOnlyError,
    vendor.OutOfMemoryError,
    vendor.TryAgainError,
    vendor.ClusterDownError,
    vendor.MasterDownError,
)
_REFUSALS = (vendor.AuthenticationError, vendor.AuthorizationError, vendor.NoPermissionError)
_PASSING_TEXTS = ("MISCONF", "BUSY", "NOREPLICAS", "OOM")


class SchemaMissing(Exception):
    """The server answers, but holds no state of this deployment."""


def connect_sync(url: str, *, connect_timeout_s: float, operation_timeout_s: float | None) -> redis.Redis:
    """A plain synchronous client for the queue. ``operation_timeout_s`` None: blocking calls may take long."""
    return redis.Redis.from_url(
        url, socket_connect_timeout=connect_timeout_s, socket_timeout=operation_timeout_s, protocol=2
    )


class Link:
    """One process's connections to one deployment's state.

    ``on_empty`` is awaited when the state is missing; afterwards the call is made again.
    """

    def __init__(
        self, url: str, prefix: str, scripts: Scripts, *, connect_timeout_s: float, operation_timeout_s: float
    ) -> None:
        self.on_empty: Callable[[], Awaitable[Any]] | None = None
        self.operation_timeout_s = operation_timeout_s
        self._prefix = prefix
        self._scripts = scripts
        shared: dict[str, Any] = {
            "socket_connect_timeout": connect_timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "client_name": "warmpool",
        }
        try:
            pool = aredis.BlockingConnectionPool.from_url(
                url, max_connections=32, timeout=operation_timeout_s, socket_timeout=operation_timeout_s, **shared
            )
            waiting = aredis.ConnectionPool.from_url(url, max_connections=4096, socket_timeout=None, **shared)
        except ValueError as error:
            raise Permanent(
                "invalid_store_url",
                f"The store's address is not valid: {error}.",
                hint="Use redis://, rediss:// or unix://.",
            ) from error
        self._client = aredis.Redis.from_pool(pool)
        self._waiting = aredis.Redis.from_pool(waiting)

    async def close(self) -> None:
        await self._client.aclose()
        await self._waiting.aclose()

    async def command(self, *words: str | bytes | float, repeat: bool = True) -> Any:
        """One plain command."""
        return await self._guarded(lambda: self._send(*words), repeat)

    async def read_together(self, *commands: tuple[str, ...]) -> list[Any]:
        """Several reads as one transaction: nothing changes between them."""

        async def send() -> list[Any]:
            async with asyncio.timeout(self.operation_timeout_s), self._client.pipeline(transaction=True) as pipe:
                for words in commands:
                    pipe.execute_command(*words)
                return await pipe.execute()

        return cast(list[Any], await self._guarded(send, True))

    async def wait(self, wait_s: float, *words: str | bytes | float) -> Any:
        """A command that blocks on the server for up to ``wait_s``."""

        async def send() -> Any:
            async with asyncio.timeout(wait_s + self.operation_timeout_s):
                return await self._waiting.execute_command(*words)  # type: ignore[no-untyped-call]

        return await self._guarded(send, True)

    async def subscription(self, channel: str) -> AsyncGenerator[bytes | None, None]:
        """Messages of a channel from now on; None whenever a subscription begins: messages before it are lost.

        Ends with Retryable ``store_unavailable`` when the connection breaks.
        """
        listening = self._waiting.pubsub()
        try:
            await listening.subscribe(channel)
            while True:
                message = await listening.get_message(timeout=None)
                if message is not None and message["type"] in ("subscribe", "message"):
                    yield message["data"] if message["type"] == "message" else None
        except (vendor.RedisError, OSError) as error:
            raise self._translated(error) from error
        finally:
            with contextlib.suppress(vendor.RedisError, OSError):
                await listening.aclose()  # type: ignore[no-untyped-call]

    async def run(self, name: str, args: object = None, *records: bytes, repeat: bool = True) -> Any:
        """One script: ``args`` become its named arguments, ``records`` follow as text."""
        script = self._scripts[name]
        arguments = (encode(args if args is not None else {}), *records)
        for _ in range(2):
            try:
                return await self._guarded(lambda: self._evaluate(script, arguments), repeat)
            except SchemaMissing:
                if self.on_empty is None:
                    break
                await self.on_empty()
        raise Retryable("store_unavailable", "The store was emptied while it was used.")

    async def run_bare(self, script: Script, *arguments: str | int) -> Any:
        """A script without the prelude."""
        return await self._guarded(lambda: self._evaluate(script, arguments), True)

    async def _evaluate(self, script: Script, arguments: tuple[str | bytes | int, ...]) -> Any:
        try:
            return await self._send("EVALSHA", script.sha, 1, self._prefix, *arguments)
        except vendor.NoScriptError:
            # The server was restarted or never saw it; EVAL also makes it known.
            return await self._send("EVAL", script.text, 1, self._prefix, *arguments)

    async def _send(self, *words: str | bytes | float) -> Any:
        # Over all of it: when the server hangs, most of the time goes into waiting for a free connection.
        async with asyncio.timeout(self.operation_timeout_s):
            return await self._client.execute_command(*words)  # type: ignore[no-untyped-call]

    async def _guarded(self, send: Callable[[], Awaitable[Any]], repeat: bool) -> Any:
        try:
            try:
                return await send()
            except vendor.ConnectionError as error:
                if not repeat or isinstance(error, vendor.AuthenticationError | vendor.BusyLoadingError):
                    raise
                return await send()
        except (vendor.RedisError, OSError, TimeoutError) as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        text = str(error)
        if isinstance(error, vendor.ResponseError) and text.startswith(_MARK):
            return _raised_by_script(text)
        # While connecting, what the server says is wrapped once more.
        if isinstance(error.__cause__, _REFUSALS) or isinstance(error, _REFUSALS):
            return Permanent("store_denied", f"The store refuses this client: {text}", hint="Check store.redis_url.")
        passing = isinstance(error, _PASSING) or text.startswith(_PASSING_TEXTS)
        if isinstance(error, vendor.ResponseError) and not passing:
            return Permanent("store_error", f"The store rejected a command: {text}")
        return Retryable(
            "store_unavailable",
            f"The store can't be reached or doesn't answer in time ({type(error).__name__}: {text}).",
            hint="Sandboxes that run are not affected; try again.",
        )


def _raised_by_script(text: str) -> Exception:
    # The server appends the script's name behind the JSON text.
    told = text[len(_MARK) : text.rfind("}") + 1]
    fields = msgspec.json.decode(told.encode(), type=dict[str, str])
    if fields["kind"] == "schema":
        return SchemaMissing()
    return _KINDS[fields["kind"]](fields["code"], fields["message"], hint=fields["hint"])
