"""The reaper: ends what is due, and brings records and reality together again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controlplane.agentclient.port import AgentClient, Door
from controlplane.binding import Binder
from controlplane.errors import WarmpoolError
from controlplane.loops.garbage import Garbage
from controlplane.loops.reality import Reality
from controlplane.model.sandbox import Session
from controlplane.store.port import Store

log = logging.getLogger(__name__)

_MANY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperTimes:
    """Seconds. ``due_s``, ``compare_s``, ``collect_s``: time between two looks for leases that are over, between
    two comparisons with what runs, between two collections of what nobody needs any more.
    ``binding_s``: a session still binding after it was left behind by a caller that died."""

    due_s: float = 0.5
    compare_s: float = 2.0
    collect_s: float = 30.0
    binding_s: float = 5.0
    probe_timeout_s: float = 2.0


class Reaper:
    """``leads`` says whether this process's scheduler leads: only its reaper acts. Every act is checked again
    atomically by the store, so that two reapers during a change of leaders do no harm."""

    def __init__(
        self,
        *,
        store: Store,
        agents: AgentClient,
        binder: Binder,
        reality: Reality,
        garbage: Garbage,
        leads: Callable[[], bool],
        times: ReaperTimes | None = None,
    ) -> None:
        self._store = store
        self._agents = agents
        self._binder = binder
        self._reality = reality
        self._garbage = garbage
        self._leads = leads
        self._times = times or ReaperTimes()

    async def run(self, stop: asyncio.Event) -> None:
        times = self._times
        await asyncio.gather(
            self._every(stop, times.due_s, self.end_due),
            self._every(stop, times.compare_s, self.end_idle),
            self._every(stop, times.compare_s, self.finish_bindings),
            self._every(stop, times.compare_s, self._reality.compare),
            self._every(stop, times.collect_s, self._garbage.collect),
        )

    async def end_due(self) -> None:
        """Sessions whose lease or waiting time is over; judged by the store's clock."""
        while len(ended := await self._store.due_sessions(_MANY)) == _MANY:
            log.info("ended %d sessions that were due", len(ended))

    async def end_idle(self) -> None:
        """Attached sessions that were idle for too long, but for those in which a command runs."""
        for session in await self._store.idle_candidates(_MANY):
            if await self._works(session):
                await self._store.touch_session(session.id)
            else:
                detail = f"No activity for {session.idle_timeout_s:g} s."
                await self._store.end_session(session.id, "idle", detail, "reaper")

    async def finish_bindings(self) -> None:
        """Whoever claimed these died before binding them: bind them, or give them the next sandbox."""
        now = await self._store.now()
        for session in await self._store.list_sessions(None, ["binding"], {}, _MANY):
            if session.claimed_at is not None and now - session.claimed_at > self._times.binding_s:
                log.warning("session %s was left binding; finishing it", session.id)
                await self._binder.bind(session)

    async def _works(self, session: Session) -> bool:
        if session.sandbox is None or session.door is None:
            return False
        try:
            async with asyncio.timeout(self._times.probe_timeout_s):
                binding = await self._agents.binding(Door(session.sandbox, session.door))
        except (TimeoutError, WarmpoolError) as error:
            # An idle rule must not kill for a slow answer; a dead sandbox is found by the comparison.
            log.info("sandbox %s did not say whether it works: %s", session.sandbox, error)
            return True
        idle_s = session.idle_timeout_s or 0.0
        return binding.running > 0 or binding.last_activity_at + idle_s > await self._store.now()

    async def _every(self, stop: asyncio.Event, seconds: float, look: Callable[[], Awaitable[None]]) -> None:
        while not stop.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await stop.wait()
            except TimeoutError:
                if not self._leads():
                    continue
                try:
                    await look()
                except WarmpoolError as error:
                    log.warning("reaper: %s", error.message)
                except Exception:
                    log.exception("reaper: unexpected error, goes on")
