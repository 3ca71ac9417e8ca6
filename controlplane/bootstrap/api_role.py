"""The API's process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from controlplane.api.app import create_app
from controlplane.api.deps import ApiDeps, ApiLimits, Part
from controlplane.api.heads import BoundedHeads
from controlplane.binding import Binder
from controlplane.bootstrap import adapters, presence
from controlplane.bootstrap.operator import write_api_address
from controlplane.bootstrap.process import calm_garbage_collection, log_to_stderr
from controlplane.clock import SystemClock
from controlplane.configuration import deployment_secret
from controlplane.errors import Permanent
from controlplane.metrics import Metrics
from controlplane.pool.service import PoolService
from controlplane.sessions.machine import SessionMachine
from controlplane.sessions.service import SessionLimits, SessionService
from controlplane.sessions.targets import Targets
from controlplane.settings import Settings
from controlplane.store.port import Store
from controlplane.templates.service import TemplateService
from controlplane.tenancy.service import TenancyService


def serve(settings: Settings) -> None:
    """The API. Its address is written to run/api.json in the state folder once it listens."""
    log_to_stderr(settings)
    listener = _listen(settings)
    app = _api(settings, f"http://{settings.api.host}:{listener.getsockname()[1]}")
    config = uvicorn.Config(
        app, loop="uvloop", http=BoundedHeads, ws="none", log_level="warning", access_log=False, lifespan="on"
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
        parts=parts(store),
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
        calm_garbage_collection()
        yield
        await agents.close()
        await store.close()

    app.router.lifespan_context = life
    return app


def parts(store: Store) -> tuple[Callable[[], Awaitable[Part]], ...]:
    async def leader() -> Part:
        holder, compared = await store.leader(), await store.announced("scheduler")
        detail = holder or "no scheduler leads; start `warmpool scheduler`"
        if holder and not compared:
            detail = f"{holder} compares records with what really runs"
        return Part(name="scheduler", ok=bool(holder and compared), detail=detail)

    async def workers() -> Part:
        found = await store.announced("worker")
        detail = f"{len(found)} at work" if found else "no worker has reported; start `warmpool worker`"
        return Part(name="workers", ok=bool(found), detail=detail)

    return leader, workers
