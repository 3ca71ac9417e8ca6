"""From a record to a ready sandbox, and from draining to gone.

Every step reads the record again, may be repeated, and notes its progress; a worker that dies between two
steps leaves a record that the next run of the same job takes from there.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from agents.wire import sandbox_key
from controlplane.agentclient.port import AgentClient, Door
from controlplane.agentclient.readiness import until_ready
from controlplane.binding import Binder
from controlplane.egressclient.port import EgressGateway
from controlplane.errors import Conflict, NotFound, Permanent, Retryable, WarmpoolError
from controlplane.ids import SandboxId
from controlplane.model.resources import Resources
from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Template
from controlplane.observer import Observer, Unobserved
from controlplane.provisioning.labels import session_labels
from controlplane.retrying import backoff_s, retried
from controlplane.runtime.port import Runtime, SandboxSpec
from controlplane.store.port import Store

log = logging.getLogger(__name__)

_DEFAULT_MAX_AGE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionTimes:
    """Seconds. ``start_timeout_s``: longest time for each of creating a sandbox and its becoming ready."""

    start_timeout_s: float = 120.0
    destroy_timeout_s: float = 60.0
    backoff_base_s: float = 2.0
    backoff_max_s: float = 300.0


class Provisioning:
    """``secret``: the deployment's, from which each door's key derives. ``egress`` None: no gateway runs here,
    so that there are no doors to close."""

    def __init__(
        self,
        *,
        store: Store,
        runtime: Runtime,
        agents: AgentClient,
        deployment: str,
        secret: bytes,
        egress: EgressGateway | None = None,
        times: ProvisionTimes | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._agents = agents
        self._deployment = deployment
        self._secret = secret
        self._egress = egress
        self._times = times or ProvisionTimes()
        self._observer = observer or Unobserved()
        self._binder = Binder(store, agents, actor="provisioning", timeout_s=5.0)

    async def provision(self, sandbox_id: SandboxId) -> None:
        """Make the recorded sandbox ready, and bind the session that waits for it, if one does.

        A failure is noted on the record and its lineage, not raised; raises Retryable ``store_unavailable``."""
        sandbox = await self._store.find_sandbox(sandbox_id)
        if sandbox is not None and sandbox.state == "claimed" and sandbox.session is not None:
            await self._bind_claimed(sandbox)
            return
        if sandbox is None or sandbox.state != "building":
            return
        try:
            await self._make_ready(sandbox)
        except (Conflict, NotFound) as error:
            await self._lost(sandbox, error)
        except WarmpoolError as error:
            if error.code == "store_unavailable":
                raise
            await self._failed(sandbox, error)
        except Exception as error:
            # A fault of this program: noted like any failure, or the job would be put again for ever.
            log.exception("sandbox %s: unexpected error", sandbox_id)
            await self._failed(sandbox, Permanent("internal_error", f"Unexpected {type(error).__name__}: {error}"))

    async def _make_ready(self, sandbox: Sandbox) -> None:
        limit_s = self._times.start_timeout_s
        template = await self._template(sandbox)
        spec = await self._spec(sandbox, template)
        await self._store.sandbox_step(sandbox.id, "create", None, limit_s * 2)
        async with self._step("create"):
            running = await retried(lambda: self._runtime.create(spec), within_s=limit_s, what="Creating it")
            if running.door is None:
                raise Permanent("no_door", f"The runtime gave the sandbox no door: {running.detail or running.state}.")
        await self._store.sandbox_step(sandbox.id, "ready", running.door, limit_s * 2)
        async with self._step("ready"):
            door = Door(sandbox.id, running.door)
            await until_ready(self._agents, door, limit_s, lambda: self._still_runs(sandbox.id))
        session = await self._store.sandbox_ready(
            sandbox.id, template.max_age_s if template is not None else _DEFAULT_MAX_AGE_S
        )
        await self._note_success(sandbox)
        if session is not None:
            async with self._step("bind"):
                await self._binder.bind(session)

    async def _template(self, sandbox: Sandbox) -> Template | None:
        version = await self._store.get_version(sandbox.version)
        try:
            return await self._store.get_template(version.template)
        except NotFound:
            return None

    async def _spec(self, sandbox: Sandbox, template: Template | None) -> SandboxSpec:
        version = await self._store.get_version(sandbox.version)
        return SandboxSpec(
            id=sandbox.id,
            image=version.image,
            resources=Resources(
                memory_bytes=sandbox.memory_bytes,
                cpu_cores=sandbox.cpu_cores,
                pids=sandbox.pids,
                disk_bytes=sandbox.disk_bytes,
            ),
            labels=session_labels(sandbox, self._deployment),
            door_key_hex=sandbox_key(self._secret, sandbox.id).hex(),
            docker=version.docker,
            trusted=template is not None and template.trusted,
            template_env=dict(version.env),
        )

    async def _still_runs(self, sandbox: SandboxId) -> None:
        running = await self._runtime.inspect(sandbox)
        if running is None or running.state == "stopped":
            detail = running.detail if running is not None else ""
            raise Permanent("sandbox_died", f"The sandbox stopped before it was ready. {detail}".rstrip())

    async def _note_success(self, sandbox: Sandbox) -> None:
        lineage = await self._store.get_lineage(sandbox.lineage)
        if lineage is not None and lineage.provision_failures:
            await self._store.note_provision(sandbox.lineage, True, "", 0.0)

    async def _bind_claimed(self, sandbox: Sandbox) -> None:
        assert sandbox.session is not None
        session = await self._store.get_session(sandbox.session)
        if session.state == "binding" and session.sandbox == sandbox.id:
            await self._binder.bind(session)

    async def _lost(self, sandbox: Sandbox, error: WarmpoolError) -> None:
        """The record changed hands meanwhile (draining, gone): whatever this run has made must go as well."""
        now = await self._store.find_sandbox(sandbox.id)
        if now is not None and now.state == "building":
            await self._failed(sandbox, error)
        elif now is None or now.state in ("draining", "failed"):
            log.info("sandbox %s is no longer wanted: %s", sandbox.id, error.message)
            await self._runtime.destroy(sandbox.id)

    async def _failed(self, sandbox: Sandbox, error: WarmpoolError) -> None:
        current = await self._store.find_sandbox(sandbox.id)
        at = current.step if current is not None else sandbox.step
        log.warning("sandbox %s of %s failed at %s: %s", sandbox.id, sandbox.pool, at, error)
        # Counted first: a crash in between counts one failure twice rather than none for ever.
        lineage = await self._store.get_lineage(sandbox.lineage)
        failures = (lineage.provision_failures if lineage is not None else 0) + 1
        wait_s = backoff_s(failures, self._times.backoff_base_s, self._times.backoff_max_s)
        await self._store.note_provision(sandbox.lineage, False, str(error), wait_s)
        if error.code == "image_not_found":
            # The runtime or its disk was changed under the version: no further start can succeed, a build can.
            await self._store.reset_lineage(sandbox.lineage, rebuild=True)
        try:
            await self._store.fail_sandbox(sandbox.id, f"{at}: {error.message}", "provisioning")
        except (Conflict, NotFound):
            log.info("sandbox %s was given up meanwhile", sandbox.id)

    async def retire(self, sandbox_id: SandboxId) -> None:
        """Destroy a draining sandbox and forget its record. One in another state is left alone: a job may be
        older than the state it was queued for."""
        sandbox = await self._store.find_sandbox(sandbox_id)
        if sandbox is None or sandbox.state != "draining":
            return
        try:
            await self._store.sandbox_step(sandbox_id, "destroy", None, self._times.destroy_timeout_s * 2)
        except (Conflict, NotFound):
            return
        async with self._step("destroy"):
            await retried(
                lambda: self._runtime.destroy(sandbox_id),
                within_s=self._times.destroy_timeout_s,
                what="Destroying the sandbox",
            )
        await self._close_door(sandbox_id)
        self._agents.forget(sandbox_id)
        await self._store.sandbox_gone(sandbox_id)

    async def _close_door(self, sandbox: SandboxId) -> None:
        if self._egress is None:
            return
        try:
            await self._egress.delete_door(sandbox)
        except Retryable as error:
            # Its folder is gone with the sandbox, so nobody can use it; the reaper closes it later.
            log.warning("door of %s not closed yet: %s", sandbox, error.message)

    @contextlib.asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        started = time.perf_counter()
        ok = False
        try:
            yield
            ok = True
        finally:
            self._observer.step_duration(name, time.perf_counter() - started, ok)
