"""The scheduler's process, with the reaper beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from controlplane.binding import Binder
from controlplane.bootstrap import adapters, presence
from controlplane.bootstrap.operator import keep_operator
from controlplane.bootstrap.process import calm_garbage_collection, log_to_stderr
from controlplane.errors import WarmpoolError
from controlplane.forecast import Steady
from controlplane.loops.applier import Applier, ApplyTimes
from controlplane.loops.garbage import Garbage
from controlplane.loops.reality import Reality
from controlplane.loops.reaper import Reaper, ReaperTimes
from controlplane.loops.scheduler import Scheduler
from controlplane.metrics import provision_step_counter
from controlplane.model.actions import Limits
from controlplane.model.resources import Budget
from controlplane.observer import CountingObserver
from controlplane.queue import RqQueue
from controlplane.settings import Settings
from controlplane.store.connection import connect_sync
from controlplane.store.port import Store

log = logging.getLogger(__name__)


def run_scheduler(settings: Settings) -> None:
    log_to_stderr(settings)
    asyncio.run(_schedule(settings))


async def _schedule(settings: Settings) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    host = adapters.host_config(settings)
    store, agents = adapters.store(settings), adapters.agents(settings)
    runtime = await adapters.choose_runtime(settings, host)
    queue = RqQueue(
        connect_sync(
            adapters.store_url(settings),
            connect_timeout_s=settings.store.connect_timeout_s,
            operation_timeout_s=settings.store.operation_timeout_s,
        ),
        settings.deployment,
    )
    binder = Binder(store, agents, actor="scheduler", timeout_s=5.0)
    observer = CountingObserver(store.count, provision_step_counter)
    scheduler = Scheduler(
        store=store,
        applier=Applier(
            store,
            queue,
            runtime_name=runtime.name,
            times=ApplyTimes(
                start_timeout_s=settings.pool.start_timeout_s,
                backoff_base_s=settings.pool.backoff_base_s,
                backoff_max_s=settings.pool.backoff_max_s,
            ),
        ),
        binder=binder,
        forecast=Steady(),
        limits=_limits(settings),
        holder=presence.holder_name(),
        lease_s=settings.scheduler.lease_s,
        tick_s=settings.scheduler.tick_s,
        observer=observer,
    )
    reality = Reality(store=store, runtime=runtime, agents=agents)
    reaper = Reaper(
        store=store,
        agents=agents,
        binder=binder,
        reality=reality,
        garbage=Garbage(
            store=store,
            runtime=runtime,
            logs=adapters.build_logs(settings),
            egress=adapters.egress(settings),
            keep_superseded_s=settings.build.keep_superseded_s,
            keep_unused_ref_s=settings.build.keep_unused_ref_s,
        ),
        leads=lambda: scheduler.leadership is not None,
        times=ReaperTimes(compare_s=settings.scheduler.reap_s),
    )
    calm_garbage_collection()
    announcing = asyncio.create_task(_announce(store, reality))
    try:
        await asyncio.gather(scheduler.run(stop), reaper.run(stop), keep_operator(settings, store, stop))
    finally:
        announcing.cancel()
        await observer.settle()
        await queue.close()
        await agents.close()
        await runtime.close()
        await store.close()


async def _announce(store: Store, reality: Reality) -> None:
    """Say that this process is here, once records and reality were compared: after a restart of the machine the
    store knows sandboxes that are gone, and no session should be sent to them."""
    while True:
        try:
            await reality.compare()
            break
        except WarmpoolError as error:
            log.warning("records are not compared with what runs yet: %s", error.message)
            await asyncio.sleep(0.5)
    await presence.announce(store, "scheduler", "{}")


def _limits(settings: Settings) -> Limits:
    pool = settings.pool
    memory = pool.memory_budget_bytes or int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.8)
    return Limits(
        budget=Budget(memory_bytes=memory, cpu_cores=pool.cpu_budget_cores, sandboxes=pool.max_sandboxes),
        max_starts_in_flight=pool.max_starts_in_flight,
        max_retires_in_flight=pool.max_retires_in_flight,
        max_failures=pool.max_failures,
        adhoc_idle_s=pool.adhoc_idle_s,
        min_remaining_s=pool.min_remaining_s,
    )
