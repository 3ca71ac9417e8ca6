"""Who is here: workers and the scheduler say so every few seconds; the API reads it for /readyz and /v1/runtime."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable

import msgspec

from controlplane.bootstrap import adapters
from controlplane.errors import WarmpoolError
from controlplane.runtime.port import Capabilities
from controlplane.settings import Settings
from controlplane.store.port import Store

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_LASTS_S = 7.0


def holder_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


async def announce(store: Store, role: str, facts: str) -> None:
    """Until cancelled; a store that does not answer is tried again."""
    while True:
        try:
            await store.announce(role, holder_name(), facts, _LASTS_S)
        except WarmpoolError as error:
            log.debug("not announced: %s", error.message)
        await asyncio.sleep(_EVERY_S)


def announce_in_thread(settings: Settings, role: str, facts: str) -> None:
    """For a process whose main thread is busy with jobs. Ends with the process."""

    async def main() -> None:
        store = adapters.store(settings)
        await announce(store, role, facts)

    threading.Thread(target=lambda: asyncio.run(main()), name="presence", daemon=True).start()


def encode(capabilities: Capabilities) -> str:
    return msgspec.json.encode(capabilities).decode()


def capabilities_reader(store: Store) -> Callable[[], Awaitable[Capabilities | None]]:
    async def read() -> Capabilities | None:
        for facts in (await store.announced("worker")).values():
            return msgspec.json.decode(facts, type=Capabilities)
        return None

    return read
