"""One builder per process role. Each runs until SIGTERM or SIGINT and then stops in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from controlplane.api.app import create_app
from controlplane.api.deps import ApiDeps, ApiLimits
from controlplane.bases.registries import addresses_out_of_range, registries
from controlplane.binding import Binder
from controlplane.bootstrap import adapters, presence
from controlplane.bootstrap.operator import write_api_address
from controlplane.clock import SystemClock
from controlplane.configuration import deployment_secret
from controlplane.errors import Permanent
from controlplane.forecast import Steady
from controlplane.jobs import JobContext, configure, shut_down
from controlplane.loops.applier import Applier, ApplyTimes
from controlplane.loops.garbage import Garbage
from controlplane.loops.reality import Reality
from controlplane.loops.reaper import Reaper, ReaperTimes
from controlplane.loops.scheduler import Scheduler
from controlplane.metrics import Metrics, provision_step_counter
from controlplane.model.actions import Limits
from controlplane.model.resources import Budget
from controlplane.observer import CountingObserver
from controlplane.pool.service import PoolService
from controlplane.provisioning.service import Provisioning, ProvisionTimes
from controlplane.queue import QueueName, RqQueue
from controlplane.queue import run_worker as work
from controlplane.sessions.machine import SessionMachine
from controlplane.sessions.service import SessionLimits, SessionService
from controlplane.sessions.targets import Targets
from controlplane.settings import Settings
from controlplane.store.connection import connect_sync
from controlplane.templates.builder import Builder, BuildTimes
from controlplane.templates.service import TemplateService
from controlplane.tenancy.service import TenancyService

log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """The API. Its address is written to run/api.json in the state folder once it listens."""
    _log_to_stderr(settings)
    listener = _listen(settings)
    app = _api(settings, f"http://{settings.api.host}:{listener.getsockname()[1]}")
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", log_level="warning", access_log=False, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listener])


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.api.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.api.host, settings.api.port))
    except OSError as error:
        raise Permanent(
            "address_in_use",
            f"The API can't listen on {settings.api.host}:{settings.api.port}: {error.strerror}.",
            hint="Choose another with --port, or 0 for a free one.",
        ) from error
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _api(settings: Settings, url: str) -> FastAPI:
    clock = SystemClock()
    store = adapters.store(settings)
    agents = adapters.agents(settings)
    metrics = Metrics()
    limits = SessionLimits(
        max_wait_s=settings.api.max_wait_s,
        default_wait_s=settings.api.default_wait_s,
        max_waiting_per_pool=settings.api.max_waiting_per_pool,
        min_remaining_s=settings.pool.min_remaining_s,
    )
    targets = Targets(store, clock, default_max_total=settings.pool.default_max_total)
    binder = Binder(store, agents, actor="api", on_failure=metrics.bind_failed)
    deps = ApiDeps(
        store=store,
        sessions=SessionService(store, binder, targets, metrics, clock, limits),
        machine=SessionMachine(store, agents, clock),
        tenancy=TenancyService(store, deployment_secret(settings), clock),
        templates=TemplateService(
            store,
            min_remaining_s=settings.pool.min_remaining_s,
            capabilities=presence.capabilities_reader(store),
        ),
        pools=PoolService(store),
        logs=adapters.build_logs(settings),
        capabilities=presence.capabilities_reader(store),
        metrics=metrics,
        clock=clock,
        parts=presence.parts(store),
        limits=ApiLimits(
            max_body_bytes=settings.api.max_body_bytes,
            max_upload_bytes=settings.api.max_upload_bytes,
            max_wait_s=settings.api.max_wait_s,
            step_timeout_s=settings.build.step_timeout_s,
            default_max_total=settings.pool.default_max_total,
        ),
    )
    app = create_app(deps)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        write_api_address(settings.state_dir / "run" / "api.json", url)
        _calm_garbage_collection()
        yield
        await agents.close()
        await store.close()

    app.router.lifespan_context = life
    return app


def run_worker(settings: Settings, queues: Sequence[str]) -> None:
    """One worker process; ``queues`` in order of urgency. Permanent ``unknown_queue``."""
    _log_to_stderr(settings)
    # A retirement is short and frees what a refill may need.
    known: tuple[QueueName, ...] = ("urgent", "retire", "refill", "build")
    chosen = [name for name in known if name in queues]
    if unknown := sorted(set(queues) - set(known)):
        raise Permanent("unknown_queue", f"There is no queue {unknown[0]!r}.", hint=f"Queues: {', '.join(known)}.")
    connection = connect_sync(
        adapters.store_url(settings),
        connect_timeout_s=settings.store.connect_timeout_s,
        operation_timeout_s=None,
    )
    configure(lambda: _job_context(settings))
    try:
        work(chosen, connection, settings.deployment)
    finally:
        shut_down()


async def _job_context(settings: Settings) -> JobContext:
    host = adapters.host_config(settings)
    store, agents = adapters.store(settings), adapters.agents(settings)
    runtime = await adapters.choose_runtime(settings, host)
    presence.announce_in_thread(settings, "worker", presence.encode(await runtime.capabilities()))
    egress = adapters.egress(settings)
    secret = deployment_secret(settings)
    observer = CountingObserver(store.count, provision_step_counter)
    provisioner = Provisioning(
        store=store,
        runtime=runtime,
        agents=agents,
        deployment=settings.deployment,
        secret=secret,
        egress=egress,
        times=ProvisionTimes(
            start_timeout_s=settings.pool.start_timeout_s,
            backoff_base_s=settings.pool.backoff_base_s,
            backoff_max_s=settings.pool.backoff_max_s,
        ),
        observer=observer,
    )
    builder = Builder(
        store=store,
        runtime=runtime,
        agents=agents,
        logs=adapters.build_logs(settings),
        deployment=settings.deployment,
        secret=secret,
        egress=egress,
        surroundings=adapters.surroundings(settings, host),
        times=BuildTimes(
            start_timeout_s=settings.pool.start_timeout_s,
            backoff_base_s=settings.pool.backoff_base_s,
            backoff_max_s=settings.pool.backoff_max_s,
        ),
        observer=observer,
    )

    async def close() -> None:
        await observer.settle()
        await egress.aclose()
        await agents.close()
        await runtime.close()
        await store.close()

    return JobContext(provisioning=provisioner, builder=builder, close=close)


def run_scheduler(settings: Settings) -> None:
    _log_to_stderr(settings)
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
    reaper = Reaper(
        store=store,
        agents=agents,
        binder=binder,
        reality=Reality(store=store, runtime=runtime, agents=agents),
        garbage=Garbage(
            store=store,
            runtime=runtime,
            logs=adapters.build_logs(settings),
            egress=adapters.egress(settings),
            keep_superseded_s=settings.build.keep_superseded_s,
        ),
        leads=lambda: scheduler.leadership is not None,
        times=ReaperTimes(compare_s=settings.scheduler.reap_s),
    )
    _calm_garbage_collection()
    try:
        await asyncio.gather(scheduler.run(stop), reaper.run(stop))
    finally:
        await observer.settle()
        await queue.close()
        await agents.close()
        await runtime.close()
        await store.close()


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


def exec_egress(settings: Settings) -> None:
    """Become the egress gateway: it is a program of its own and shares nothing with this one."""
    control = settings.egress_control
    control.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    logs = settings.state_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "agents.egress", "--control", str(control)]
    argv += ["--doors-dir", str(settings.state_dir / "doors"), "--state-dir", str(settings.state_dir / "egress")]
    argv += ["--log-file", str(logs / "egress-audit.jsonl")]
    for network in _reachable(settings):
        argv += ["--reachable-network", network]
    os.execv(sys.executable, argv)


def _calm_garbage_collection() -> None:
    """Modules and services live for ever: leave them out, and look at the young less often.

    With ten thousand records alive a full collection takes tens of milliseconds, in the middle of a tick or attach."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _reachable(settings: Settings) -> list[str]:
    host = adapters.host_config(settings)
    own = addresses_out_of_range(registries(host)) if settings.runtime.host_config == "auto" else ()
    if own:
        log.warning("package registries of this host are not at public addresses; builds may reach %s", ", ".join(own))
    return [*settings.egress.reachable_networks, *own]


def _log_to_stderr(settings: Settings) -> None:
    level = settings.log_level.upper()
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("docker", "urllib3", "aiohttp.access", "rq.worker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
