"""A clean end of a deployment: nothing that it made is left."""

from __future__ import annotations

import asyncio
import logging

from controlplane.bootstrap import adapters
from controlplane.errors import Retryable
from controlplane.ids import SandboxId
from controlplane.runtime.port import Runtime
from controlplane.settings import Settings
from controlplane.store.port import Store

log = logging.getLogger(__name__)
_REASON = "the deployment was stopped"


async def destroy_everything(settings: Settings) -> int:
    """Destroy every sandbox of this deployment, on whatever runtime, and their records where the store answers;
    sessions end with ``sandbox_lost``. The number destroyed. No scheduler or worker may run meanwhile."""
    count = await _destroy_running(settings)
    store = adapters.store(settings)
    try:
        await _forget_records(store)
    except Retryable as error:
        # The reaper of the next start finds out that they are gone.
        log.warning("records of sandboxes are left as they are: %s", error.message)
    finally:
        await store.close()
    return count


async def _forget_records(store: Store) -> None:
    for sandbox in await store.list_sandboxes(None):
        if sandbox.state not in ("failed", "draining"):
            await store.fail_sandbox(sandbox.id, _REASON, "operator")
        await store.drain_sandbox(sandbox.id, _REASON, "operator", None, False)
        await store.sandbox_gone(sandbox.id)


async def _destroy_running(settings: Settings) -> int:
    host = adapters.host_config(settings)
    runtimes: list[Runtime]
    if settings.runtime.kind == "simulated":
        runtimes = [adapters.simulated_runtime(settings)]
    else:
        runtimes = [adapters.local_runtime(settings, host), adapters.docker_runtime(settings, host)]
    count = 0
    for runtime in runtimes:
        try:
            if (await runtime.capabilities()).usable:
                count += await _destroy_all(runtime)
        finally:
            await runtime.close()
    return count


async def _destroy_all(runtime: Runtime) -> int:
    found = await runtime.list_sandboxes()
    limit = asyncio.Semaphore(8)

    async def destroy(sandbox: SandboxId) -> None:
        async with limit:
            await runtime.destroy(sandbox)

    await asyncio.gather(*(destroy(sandbox.id) for sandbox in found))
    return len(found)
