"""A worker's process."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.bootstrap import adapters, presence
from controlplane.bootstrap.process import log_to_stderr
from controlplane.configuration import deployment_secret
from controlplane.errors import Permanent
from controlplane.jobs import JobContext, configure, shut_down
from controlplane.metrics import provision_step_counter
from controlplane.observer import CountingObserver
from controlplane.provisioning.service import Provisioning, ProvisionTimes
from controlplane.queue import QueueName
from controlplane.queue import run_worker as work
from controlplane.settings import Settings
from controlplane.store.connection import connect_sync
from controlplane.templates.builder import Builder, BuildTimes


def run_worker(settings: Settings, queues: Sequence[str]) -> None:
    """One worker process; ``queues`` in order of urgency. Permanent ``unknown_queue``."""
    log_to_stderr(settings)
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
        # A simulated build runs nothing that could use the host's configuration.
        surroundings=None if runtime.name == "simulated" else adapters.surroundings(host),
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
