"""One scheduler tick over many pools: what it reads from a real Valkey, and what it decides."""

from __future__ import annotations

import asyncio
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from controlplane.ids import LineageKey, PoolKey, SandboxId, TenantId, VersionId, lineage_key, pool_key, template_key
from controlplane.model.actions import Limits
from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Build, Pool, Template, Version
from controlplane.planning import plan
from controlplane.store.port import NewSandbox
from controlplane.store.redis_store import RedisStore, StoreOptions
from controlplane.supervisor.valkey import valkey_role

TENANT = TenantId("bench")
EACH = 10
ROUNDS = 20


async def measure(state_dir: Path) -> list[tuple[int, list[float], str]]:
    """(pools, times in ms, target) for three sizes, so that linearity shows."""
    return [
        (500, await _ticks(state_dir, 500), ""),
        (1000, await _ticks(state_dir, 1000), "≤ 100"),
        (2000, await _ticks(state_dir, 2000), "linear"),
    ]


async def _ticks(state_dir: Path, pools: int) -> list[float]:
    place = state_dir / f"valkey-{pools}"
    place.mkdir(parents=True, exist_ok=True)
    socket = place / "valkey.sock"
    role = valkey_role(place, socket)
    process = subprocess.Popen(role.argv, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    store = RedisStore(
        f"unix://{socket}",
        f"tick-{time.time_ns()}",
        StoreOptions(max_templates_per_tenant=pools, max_pools_per_tenant=pools),
    )
    try:
        await _opened(store)
        await _fill(store, pools)
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            observed = await store.observe()
            plan(observed, Limits(max_starts_in_flight=64), {}, observed.now)
            times.append((time.perf_counter() - began) * 1000)
        return times
    finally:
        await store.close()
        process.terminate()
        process.wait()


async def _opened(store: RedisStore) -> None:
    for _ in range(200):
        try:
            await store.open()
            return
        except Exception:
            await asyncio.sleep(0.05)
    raise RuntimeError("Valkey did not start")


async def _fill(store: RedisStore, pools: int) -> None:
    """Pools of ten: eight ready, one claimed by age of its record, one building."""
    leadership = await store.lead("bench", 600)
    assert leadership is not None
    now = await store.now()
    for number in range(pools):
        template = template_key(TENANT, f"t{number}")
        lineage, version = lineage_key(template, None), VersionId(f"v-{number:020d}")
        await store.put_template(Template(key=template, tenant=TENANT, name=f"t{number}"))
        pool = await store.put_pool(
            Pool(
                key=pool_key(TENANT, f"p{number}"),
                tenant=TENANT,
                name=f"p{number}",
                template=template,
                max_total=20,
                min_ready=9,
            )
        )
        await _publish(store, leadership.fence, lineage, version, now)
        await asyncio.gather(
            *(_sandbox(store, leadership.fence, pool, lineage, version, number * EACH + i, i) for i in range(EACH))
        )


async def _publish(store: RedisStore, fence: int, lineage: LineageKey, version: VersionId, now: float) -> None:
    from controlplane.ids import new_build_id, split_key

    template = lineage.partition("@")[0]
    build = Build(
        id=new_build_id(),
        lineage=lineage,
        template=template_key(*split_key(template)),
        tenant=TENANT,
        revision=1,
        created_at=now,
    )
    await store.create_build(build, fence)
    await store.update_build(replace(build, state="running"))
    built = Version(
        id=version,
        lineage=lineage,
        template=build.template,
        tenant=TENANT,
        image="image",
        runtime="simulated",
        revision=1,
        created_at=now,
    )
    await store.finish_build(build, built, 0)


async def _sandbox(
    store: RedisStore, fence: int, pool: Pool, lineage: LineageKey, version: VersionId, number: int, index: int
) -> None:
    sandbox = Sandbox(
        id=SandboxId(f"sb-{number:016d}"),
        pool=PoolKey(pool.key),
        pool_uid=pool.uid,
        tenant=TENANT,
        lineage=lineage,
        version=version,
        revision=1,
        state="building",
        runtime="simulated",
        memory_bytes=1 << 28,
        cpu_cores=0.5,
        pids=256,
        door=f"sim:sb-{number:016d}",
    )
    assert await store.create_sandbox(NewSandbox(sandbox=sandbox, count_limit=pool.max_total), fence)
    if index:
        await store.sandbox_step(sandbox.id, "ready", sandbox.door, 60)
        await store.sandbox_ready(sandbox.id, 86_400)
