"""Waiting for sessions to move: one subscription per process, however many wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from controlplane.errors import Retryable, WarmpoolError
from controlplane.store.connection import Link

_RETRY_S = 0.2


class SessionWakeups:
    """Tells waiters in this process that a session has moved.

    Each waiter registers first and reads the session then, so no move is lost in between. When the
    subscription breaks, everybody is told: they read again, and wait for the new subscription.
    """

    def __init__(self, link: Link, channel: str) -> None:
        self._link = link
        self._channel = channel
        self._expected: dict[str, set[asyncio.Future[None]]] = {}
        # Done while the subscription stands; failed while the server can't be reached.
        self._standing: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        self._tell_all()

    @contextlib.asynccontextmanager
    async def expect(self, session: str) -> AsyncIterator[asyncio.Future[None]]:
        """A future that is done once the session has moved, or might have.

        Retryable ``store_unavailable`` if no subscription comes about in time.
        """
        await self._ready()
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._expected.setdefault(session, set()).add(moved)
        try:
            yield moved
        finally:
            waiting = self._expected.get(session)
            if waiting is not None:
                waiting.discard(moved)
                if not waiting:
                    del self._expected[session]

    async def _ready(self) -> None:
        if self._reader is None or self._reader.done() or self._standing is None:
            self._standing = asyncio.get_running_loop().create_future()
            self._reader = asyncio.create_task(self._read(self._standing), name="session-wakeups")
        try:
            async with asyncio.timeout(self._link.operation_timeout_s):
                await asyncio.shield(self._standing)
        except TimeoutError:
            raise Retryable("store_unavailable", "The store can't be subscribed to in time.") from None

    async def _read(self, standing: asyncio.Future[None]) -> None:
        while True:
            try:
                await self._read_until_it_breaks(standing)
            except WarmpoolError as error:
                if not standing.done():
                    standing.set_exception(error)
                    # Nobody may be waiting for it; then it is not an error worth a warning.
                    standing.exception()
                self._tell_all()
                await asyncio.sleep(_RETRY_S)
            standing = self._standing = asyncio.get_running_loop().create_future()
            self._tell_all()

    async def _read_until_it_breaks(self, standing: asyncio.Future[None]) -> None:
        async with contextlib.aclosing(self._link.subscription(self._channel)) as messages:
            async for message in messages:
                if message is not None:
                    self._tell(message.decode())
                    continue
                if not standing.done():
                    standing.set_result(None)
                self._tell_all()

    def _tell(self, session: str) -> None:
        for moved in self._expected.get(session, ()):
            if not moved.done():
                moved.set_result(None)

    def _tell_all(self) -> None:
        for session in list(self._expected):
            self._tell(session)
