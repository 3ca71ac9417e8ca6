"""Waiting until the sandboxd of a new sandbox answers and all its parts are up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from agents.wire import Ready
from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Permanent, Retryable

# sandboxd is up within some hundred milliseconds: looked at often at first, seldom later.
_FIRST_PAUSE_S = 0.004
_LONGEST_PAUSE_S = 0.1
_ASK_S = 2.0


async def until_ready(
    agents: AgentClient, door: Door, within_s: float, still_there: Callable[[], Awaitable[None]]
) -> Ready:
    """The daemon's answer once it and its parts (Docker) are ready.

    ``still_there`` is asked every few seconds and raises when waiting is in vain. Raises Permanent
    ``wrong_sandbox`` when somebody else answers at the door, Retryable ``not_ready`` after ``within_s``."""
    deadline = time.monotonic() + within_s
    pause_s, parts, greeted, asked_at = _FIRST_PAUSE_S, "nobody answers at its door", False, time.monotonic()
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            if not greeted:
                hello = await agents.hello(door)
                if hello.sandbox_id != door.sandbox:
                    raise Permanent("wrong_sandbox", f"At the door of {door.sandbox}, {hello.sandbox_id} answers.")
                greeted = True
            ready = await agents.ready(door, wait_s=min(_ASK_S, left_s))
            if ready.ready:
                return ready
            parts = ", ".join(f"{name}: {state}" for name, state in sorted(ready.parts.items()))
        except Retryable as error:
            parts = error.message
        if time.monotonic() - asked_at > _ASK_S:
            asked_at = time.monotonic()
            await still_there()
        await asyncio.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.3)
    raise Retryable("not_ready", f"The sandbox was not ready within {within_s:g} s ({parts}).")
