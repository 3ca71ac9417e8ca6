"""What other processes of the deployment say of themselves: somebody leads, workers are there and run this.

A worker announces itself (``store.announce("worker", …)``) with its runtime's ``Capabilities`` as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from controlplane.api.deps import Part
from controlplane.runtime.port import Capabilities
from controlplane.store.port import Store

WORKER = "worker"


def scheduler_part(store: Store) -> Callable[[], Awaitable[Part]]:
    async def check() -> Part:
        holder = await store.leader()
        detail = f"{holder} leads" if holder else "no scheduler leads: pools are not refilled"
        return Part(name="scheduler", ok=holder is not None, detail=detail)

    return check


def workers_part(store: Store) -> Callable[[], Awaitable[Part]]:
    async def check() -> Part:
        count = len(await store.announced(WORKER))
        detail = f"{count} announced" if count else "no worker announced itself: no sandbox is made"
        return Part(name="workers", ok=count > 0, detail=detail)

    return check


def reported_capabilities(store: Store) -> Callable[[], Awaitable[Capabilities | None]]:
    """What the runtime can do, by any worker's word; None while none told."""

    async def read() -> Capabilities | None:
        for facts in (await store.announced(WORKER)).values():
            try:
                return msgspec.json.decode(facts, type=Capabilities)
            except msgspec.MsgspecError:
                continue
        return None

    return read
