"""What /readyz asks for beyond the store: somebody leads, and workers are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from controlplane.api.deps import Part
from controlplane.store.port import Store


def scheduler_part(store: Store) -> Callable[[], Awaitable[Part]]:
    async def check() -> Part:
        holder = await store.leader()
        detail = f"{holder} leads" if holder else "no scheduler leads: pools are not refilled"
        return Part(name="scheduler", ok=holder is not None, detail=detail)

    return check


def workers_part(store: Store, role: str = "worker") -> Callable[[], Awaitable[Part]]:
    """``role``: as workers announce themselves."""

    async def check() -> Part:
        count = len(await store.announced(role))
        detail = f"{count} announced" if count else "no worker announced itself: no sandbox is made"
        return Part(name="workers", ok=count > 0, detail=detail)

    return check
