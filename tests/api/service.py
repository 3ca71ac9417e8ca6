"""A whole API for tests: uvicorn in a thread over a real store, and simulated sandboxes put there by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import uvloop

from controlplane.agentclient.dispatch import DispatchingAgent
from controlplane.agentclient.port import AgentClient
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.api.app import create_app
from controlplane.api.deps import ApiDeps, ApiLimits
from controlplane.api.heads import BoundedHeads
from controlplane.artifacts import FolderBuildLogs
from controlplane.binding import Binder
from controlplane.bootstrap.api_role import parts
from controlplane.clock import SystemClock
from controlplane.ids import SandboxId, TenantId
from controlplane.metrics import Metrics
from controlplane.model.tenancy import Role
from controlplane.pool.service import PoolService
from controlplane.runtime.simulated import SimulatedAgent, SimulatedRuntime
from controlplane.runtime.simulated.world import SandboxRecord, Up
from controlplane.sessions.machine import SessionMachine
from controlplane.sessions.service import SessionLimits, SessionService
from controlplane.sessions.targets import Targets
from controlplane.store.port import Store
from controlplane.store.redis_store import RedisStore, StoreOptions
from controlplane.templates.service import TemplateService
from controlplane.tenancy.keys import mint_key, pepper
from controlplane.tenancy.service import TenancyService
from tests.store.world import World

SECRET = b"deployment secret of the tests"


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What a test may change of the server."""

    options: StoreOptions = field(
        default_factory=lambda: StoreOptions(connect_timeout_s=10.0, operation_timeout_s=20.0)
    )
    session_limits: SessionLimits = field(default_factory=lambda: SessionLimits(default_wait_s=20.0))
    limits: ApiLimits = field(default_factory=ApiLimits)
    bind_timeout_s: float = 10.0
    agents: Sequence[tuple[str, AgentClient]] = ()


def wire(store: Store, logs: Path, runtime: SimulatedRuntime, wiring: Wiring) -> ApiDeps:
    clock, metrics = SystemClock(), Metrics()
    sim: AgentClient = SimulatedAgent(runtime.world)  # type: ignore[assignment]
    agent = DispatchingAgent({"sim": sim, "unix": UnixAgentClient(SECRET), **dict(wiring.agents)})
    targets = Targets(store, clock)
    binder = Binder(store, agent, actor="api", timeout_s=wiring.bind_timeout_s, on_failure=metrics.bind_failed)
    return ApiDeps(
        store=store,
        sessions=SessionService(store, binder, targets, metrics, clock, wiring.session_limits),
        machine=SessionMachine(store, agent, clock),
        tenancy=TenancyService(store, SECRET, clock),
        templates=TemplateService(store, capabilities=runtime.capabilities),
        pools=PoolService(store),
        logs=FolderBuildLogs(logs),
        capabilities=runtime.capabilities,
        metrics=metrics,
        clock=clock,
        limits=wiring.limits,
        parts=parts(store),
    )


@contextmanager
def serving(url: str, deployment: str, logs: Path, runtime: SimulatedRuntime, wiring: Wiring) -> Iterator[str]:
    """The API's base URL, until the block ends."""
    server: uvicorn.Server | None = None

    async def serve() -> None:
        nonlocal server
        store = RedisStore(url, deployment, wiring.options)
        app = create_app(wire(store, logs, runtime, wiring))
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            http=BoundedHeads,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
        )
        server = uvicorn.Server(config)
        try:
            await server.serve()
        finally:
            await store.close()

    def run() -> None:
        uvloop.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while server is None or not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


class Api:
    """Verbs for tests. ``world``: the store's side; ``runtime``: the simulated machines."""

    def __init__(self, url: str, store: Store, world: World, runtime: SimulatedRuntime) -> None:
        self.url = url
        self.store = store
        self.world = world
        self.runtime = runtime
        self._clients: list[httpx.AsyncClient] = []

    async def client(self, tenant: str = "acme", role: Role = "platform") -> httpx.AsyncClient:
        """A client with a key of its own; its ``headers`` hold the key."""
        record, text = mint_key(pepper(SECRET), TenantId(tenant), role, "test", time.time())
        if tenant != "acme":
            await TenancyService(self.store, SECRET, SystemClock()).put_tenant(TenantId(tenant), None, None)
        await self.store.put_api_key(record)
        return self.bare({"Authorization": f"Bearer {text}"})

    def bare(self, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
        client = httpx.AsyncClient(base_url=self.url, headers=headers or {}, timeout=60.0)
        self._clients.append(client)
        return client

    async def ready(self, **changes: Any) -> SandboxId:
        """A ready sandbox whose simulated machine answers."""
        sandbox = await self.world.sandbox(**changes)
        self.machine(sandbox.id)
        await self.store.sandbox_ready(sandbox.id, 3600.0)
        return sandbox.id

    def machine(self, sandbox: SandboxId) -> None:
        now = time.time()
        self.runtime.world.add_sandbox(
            SandboxRecord(
                id=sandbox, deployment="default", image="i", labels={}, egress=False, created_at=now, nonce="n"
            )
        )
        self.runtime.world.bring_up(sandbox, Up(now, now))

    async def serve_queue(self, sandbox: SandboxId) -> None:
        """What a worker does when a sandbox became ready and a session waits for it."""
        session = await self.store.sandbox_ready(sandbox, 3600.0)
        if session is not None:
            await self.store.bound(session.id, sandbox)

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


@asynccontextmanager
async def running(
    url: str, store: Store, world: World, deployment: str, folder: Path, wiring: Wiring | None = None
) -> AsyncIterator[Api]:
    runtime = SimulatedRuntime(start_s=0.0)
    with serving(url, deployment, folder, runtime, wiring or Wiring()) as base:
        api = Api(base, store, world, runtime)
        try:
            yield api
        finally:
            await api.close()
