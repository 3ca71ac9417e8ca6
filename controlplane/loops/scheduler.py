"""The scheduler: lead, wait for a wake-up, observe, plan, apply; and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from controlplane.binding import Binder
from controlplane.errors import Conflict, WarmpoolError
from controlplane.forecast import Forecast
from controlplane.ids import PoolKey
from controlplane.loops.applier import Applier
from controlplane.model.actions import Demand, Limits, Observed, Plan, PoolDecision
from controlplane.model.sandbox import Session
from controlplane.observer import Observer, Unobserved
from controlplane.planning import plan
from controlplane.planning.explain import encode_decision
from controlplane.store.port import Leadership, Store

log = logging.getLogger(__name__)

# Wake-ups come as fast as claims do. Planning for every one of them would take a whole core and make no
# sandbox ready sooner; so planning takes at most about a fifth of the time.
_LEAST_PAUSE_S = 0.01
_PAUSE_PER_TICK = 4.0
_MOST_SERVED = 32


class Scheduler:
    """One of possibly several; only the leader acts. ``holder`` names this process.

    ``lease_s``: leadership without renewal; ``tick_s``: longest time between two plans.
    """

    def __init__(
        self,
        *,
        store: Store,
        applier: Applier,
        binder: Binder,
        forecast: Forecast,
        limits: Limits,
        holder: str,
        lease_s: float = 5.0,
        tick_s: float = 1.0,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._applier = applier
        self._binder = binder
        self._forecast = forecast
        self._limits = limits
        self._holder = holder
        self._lease_s = lease_s
        self._tick_s = tick_s
        self._observer = observer or Unobserved()
        self._explained: dict[PoolKey, PoolDecision] = {}
        self._binding: set[asyncio.Task[Session]] = set()
        self._told: bool | None = None
        self.leadership: Leadership | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``. Survives everything that a store or queue can do; leadership is then given back."""
        while not stop.is_set():
            pause_s = await self._turn(stop)
            if pause_s > 0:
                await _either(stop.wait(), asyncio.sleep(pause_s))
        await self._resign()

    async def _turn(self, stop: asyncio.Event) -> float:
        """One plan, or one try to lead; seconds to wait before the next, beyond waiting for a wake-up."""
        try:
            self.leadership = await self._store.lead(self._holder, self._lease_s)
            self._tell(leads=self.leadership is not None)
            if self.leadership is None:
                self._explained.clear()
                return self._lease_s / 4
            began = time.monotonic()
            made, observed = await self.tick(self.leadership)
            took_s = time.monotonic() - began
            self._observer.plan_duration(took_s, len(made.actions))
            await _either(stop.wait(), asyncio.sleep(max(_LEAST_PAUSE_S, took_s * _PAUSE_PER_TICK)))
            wait_s = min(self._tick_s, self._lease_s / 3)
            if made.wake_at is not None:
                wait_s = min(wait_s, max(0.0, made.wake_at - observed.now))
            if wait_s > 0 and not stop.is_set():
                await _either(stop.wait(), self._store.wait_wake(wait_s))
        except Conflict as error:
            log.warning("scheduler %s: %s", self._holder, error.message)
            self.leadership = None
            return 0.0 if error.code == "fenced" else 0.2
        except WarmpoolError as error:
            log.warning("scheduler %s: %s", self._holder, error.message)
            return 0.5
        except Exception:
            log.exception("scheduler %s: unexpected error, goes on", self._holder)
            return 1.0
        return 0.0

    def _tell(self, *, leads: bool) -> None:
        if leads != self._told:
            log.info("scheduler %s %s", self._holder, "leads" if leads else "stands by")
            self._told = leads

    async def tick(self, leadership: Leadership) -> tuple[Plan, Observed]:
        """Observe, plan, apply, explain, once. Raises Conflict ``fenced`` when another leads by now."""
        observed = await self._store.observe()
        demand: dict[PoolKey, Demand] = {}
        for pool in observed.pools:
            if (expected := self._forecast.demand(pool, observed.now)) is not None:
                demand[pool.key] = expected
        made = plan(observed, self._limits, demand, observed.now)
        await self._serve_waiting(made)
        await self._applier.apply(made, observed, leadership.fence)
        await self._explain(made, observed.now)
        return made, observed

    async def _serve_waiting(self, made: Plan) -> None:
        """Sessions can wait beside ready sandboxes (a version became current again): bring them together."""
        for decision in made.decisions:
            if decision.waiting and decision.ready:
                for session in await self._store.serve_waiting(decision.pool, _MOST_SERVED):
                    task = asyncio.create_task(self._binder.bind(session))
                    self._binding.add(task)
                    task.add_done_callback(self._bound)

    def _bound(self, task: asyncio.Task[Session]) -> None:
        self._binding.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The session stays binding; the reaper takes it up.
            log.warning("binding was not finished: %s", error)

    async def _explain(self, made: Plan, now: float) -> None:
        changed = {d.pool: d for d in made.decisions if self._explained.get(d.pool) != d}
        if changed:
            await self._store.explain({key: encode_decision(decision, now) for key, decision in changed.items()})
        self._explained = {decision.pool: decision for decision in made.decisions}

    async def _resign(self) -> None:
        if self._binding:
            await asyncio.wait(self._binding, timeout=5.0)
        if self.leadership is not None:
            with contextlib.suppress(WarmpoolError):
                await self._store.resign(self.leadership)
            self.leadership = None


async def _either(*waits: object) -> None:
    """Until the first ends; the others are cancelled. An error of one that ended is raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
