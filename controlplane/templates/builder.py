"""Building a version: resumable steps, each with a time limit and a log that stays.

A worker that dies leaves the record at some step. The next run of the same job goes on from there if the
build sandbox still runs (a command that runs in it is taken up, not run again), else from the start, as
the next attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from controlplane.agentclient.port import AgentClient
from controlplane.artifacts.port import BuildLogs
from controlplane.clock import Clock, SystemClock
from controlplane.egressclient.port import EgressGateway
from controlplane.errors import NotFound, Permanent, WarmpoolError
from controlplane.ids import BuildId, SandboxId, new_sandbox_id
from controlplane.model.template import Build, Template, Version
from controlplane.observer import Observer, Unobserved
from controlplane.retrying import backoff_s, retried
from controlplane.runtime.port import Runtime
from controlplane.store.port import Store
from controlplane.templates.execution import CommandFailed
from controlplane.templates.inputs import planned_steps, version_id, version_inputs
from controlplane.templates.record import LiveBuild
from controlplane.templates.steps import BuildSandbox, BuildSurroundings

log = logging.getLogger(__name__)

# Somebody else ended it, or its template was deleted.
_OVER = frozenset({"build_ended", "build_not_found"})
# These end the run, not the build: the job is put again and goes on.
_INTERRUPTIONS = _OVER | {"store_unavailable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTimes:
    """Seconds, but ``max_attempts``: how often a build is begun anew after its worker or sandbox died.

    ``resolve_timeout_s`` includes making the base the first time."""

    start_timeout_s: float = 120.0
    resolve_timeout_s: float = 1800.0
    clone_timeout_s: float = 900.0
    seal_timeout_s: float = 600.0
    heartbeat_s: float = 2.0
    backoff_base_s: float = 2.0
    backoff_max_s: float = 300.0
    max_attempts: int = 3


class Builder:
    """``secret``: the deployment's, from which the key of the build sandbox's door derives."""

    def __init__(
        self,
        *,
        store: Store,
        runtime: Runtime,
        agents: AgentClient,
        logs: BuildLogs,
        deployment: str,
        secret: bytes,
        egress: EgressGateway | None = None,
        surroundings: BuildSurroundings | None = None,
        times: BuildTimes | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._agents = agents
        self._logs = logs
        self._deployment = deployment
        self._secret = secret
        self._egress = egress
        self._surroundings = surroundings or BuildSurroundings()
        self._times = times or BuildTimes()
        self._clock = clock or SystemClock()
        self._observer = observer or Unobserved()

    async def build(self, build_id: BuildId) -> None:
        """Bring the build to an end. A failure is noted on its record and lineage, not raised; raises
        Retryable ``store_unavailable``, and then the same build can be taken up again."""
        try:
            build = await self._store.get_build(build_id)
        except NotFound:
            return
        if build.state in ("queued", "running"):
            live = LiveBuild(self._store, self._logs, self._clock, build)
            try:
                await live.beating(self._run(live), self._times.heartbeat_s)
            except WarmpoolError as error:
                if error.code not in _OVER:
                    raise
            build = live.build
        if build.sandbox is not None:
            await self._clear(SandboxId(build.sandbox))

    async def _run(self, live: LiveBuild) -> None:
        try:
            template = await self._store.get_template(live.build.template)
            sandbox = await self._begin(live, template)
            await _Steps(self, live, template, sandbox).run()
        except WarmpoolError as error:
            if error.code in _INTERRUPTIONS:
                raise
            await self._fail(live, error)
        except Exception as error:
            # A fault of this program: noted like any failure, or the build would be taken up again for ever.
            log.exception("build %s: unexpected error", live.build.id)
            await self._fail(live, Permanent("internal_error", f"Unexpected {type(error).__name__}: {error}"))

    async def _begin(self, live: LiveBuild, template: Template) -> BuildSandbox:
        """Take the build up where it stands, or begin it anew."""
        build = live.build
        sandbox = BuildSandbox(
            live,
            template,
            runtime=self._runtime,
            agents=self._agents,
            egress=self._egress,
            surroundings=self._surroundings,
            deployment=self._deployment,
            secret=self._secret,
            start_timeout_s=self._times.start_timeout_s,
        )
        if build.sandbox is not None and build.revision == template.revision:
            running = await self._runtime.inspect(SandboxId(build.sandbox))
            if running is not None and running.state == "running" and running.door is not None:
                await sandbox.attach(running)
                return sandbox
            sealing = live.step("seal").state
            if sealing == "succeeded" or (sealing == "running" and running is not None):
                return sandbox
        attempt = build.attempt
        if build.sandbox is not None:
            await self._clear(SandboxId(build.sandbox))
            attempt += 1
        if attempt > self._times.max_attempts:
            raise CommandFailed(
                "build_interrupted",
                f"The build was interrupted {attempt - 1} times.",
                exit_code=None,
                hint="See the log of its last step, and whether workers or the machine run out of memory.",
            )
        times = self._times
        await live.change(
            state="running",
            revision=template.revision,
            attempt=attempt,
            sandbox=new_sandbox_id(),
            version=None,
            commit=None,
            started_at=build.started_at or self._clock.now(),
            steps=planned_steps(
                template,
                resolve_s=times.resolve_timeout_s,
                clone_s=times.clone_timeout_s,
                seal_s=times.seal_timeout_s,
            ),
        )
        return sandbox

    async def _fail(self, live: LiveBuild, error: WarmpoolError) -> None:
        build = live.build
        lineage = await self._store.get_lineage(build.lineage)
        failures = (lineage.failures if lineage is not None else 0) + 1
        wait_s = backoff_s(failures, self._times.backoff_base_s, self._times.backoff_max_s)
        log.warning("build %s of %s failed: %s", build.id, build.lineage, error.code)
        ended = replace(build, state="failed", error=str(error), error_code=error.code, ended_at=self._clock.now())
        await self._store.finish_build(ended, None, wait_s)

    async def _clear(self, sandbox: SandboxId) -> None:
        """Nothing is left of the build but its log and record; what can't be cleared now, the reaper clears."""
        if self._egress is not None:
            with contextlib.suppress(WarmpoolError):
                await self._egress.delete_door(sandbox)
        try:
            await retried(lambda: self._runtime.destroy(sandbox), within_s=60.0, what="Destroying the build sandbox")
        except WarmpoolError as error:
            log.warning("build sandbox %s not destroyed yet: %s", sandbox, error)
        self._agents.forget(sandbox)


class _Steps:
    """The steps of one build in their order; those that succeeded before are passed over."""

    def __init__(self, builder: Builder, live: LiveBuild, template: Template, sandbox: BuildSandbox) -> None:
        self._builder = builder
        self._live = live
        self._template = template
        self._sandbox = sandbox

    async def run(self) -> None:
        for step in self._live.build.steps:
            # Read again: resolving may have marked later ones as skipped.
            state = self._live.step(step.name).state
            if state not in ("succeeded", "skipped"):
                await self._step(step.name, step.timeout_s)

    async def _step(self, name: str, timeout_s: float) -> None:
        live = self._live
        body = self._body(name)
        started, ok = time.perf_counter(), False
        await live.begin_step(name)
        try:
            async with asyncio.timeout(timeout_s + 60.0):
                await body(timeout_s)
            ok = True
        except TimeoutError as error:
            message = f"Step {name} did not end within {timeout_s:g} s."
            await live.end_step(name, "failed", error=message)
            raise CommandFailed("step_timeout", message, exit_code=None) from error
        except WarmpoolError as error:
            if error.code not in _INTERRUPTIONS:
                code = error.exit_code if isinstance(error, CommandFailed) else None
                live.say(name, f"{error}")
                await live.end_step(name, "failed", exit_code=code, error=str(error))
            raise
        finally:
            kind = "setup" if name.startswith("setup-") else name
            self._builder._observer.step_duration(f"build_{kind}", time.perf_counter() - started, ok)
        if name != "publish":
            await live.end_step(name, "succeeded", exit_code=0 if name.startswith("setup-") else None)

    def _body(self, name: str) -> Callable[[float], Awaitable[None]]:
        if name.startswith("setup-"):
            script = self._template.setup[int(name[6:]) - 1].run
            return lambda limit_s: self._sandbox.setup(name, script, within_s=limit_s)
        return {"resolve": self._resolve, "clone": self._clone, "seal": self._seal, "publish": self._publish}[name]

    async def _resolve(self, limit_s: float) -> None:
        live, runtime = self._live, self._builder._runtime
        base = self._template.base
        image = await runtime.ensure_base(base, lambda line: live.say("resolve", line))
        await self._sandbox.start(image)
        commit = await self._sandbox.commit_id(within_s=min(limit_s, 120.0))
        version = version_id(await self._inputs(commit))
        live.say("resolve", f"commit {commit or '(no repository)'}, version {version}")
        await live.change(commit=commit, version=version)
        if await self._exists():
            live.say("resolve", "This version is built already and only has to be published.")
            skipped = tuple(
                replace(step, state="skipped") if step.state == "pending" and step.name != "publish" else step
                for step in live.build.steps
            )
            await live.change(steps=skipped)

    async def _clone(self, limit_s: float) -> None:
        assert self._live.build.commit is not None
        await self._sandbox.clone(self._live.build.commit, within_s=limit_s)

    async def _seal(self, limit_s: float) -> None:
        assert self._live.build.version is not None
        image = await self._sandbox.seal(self._live.build.version, within_s=limit_s)
        self._live.say("seal", f"image {image.ref}, {image.size_bytes} bytes")

    async def _publish(self, _limit_s: float) -> None:
        live, builder = self._live, self._builder
        build = live.build
        assert build.version is not None
        # Sealed before: this only asks for the image of that name.
        image = await builder._runtime.commit(self._sandbox.id, build.version)
        now = builder._clock.now()
        version = Version(
            id=build.version,
            lineage=build.lineage,
            template=build.template,
            tenant=build.tenant,
            image=image.ref,
            runtime=builder._runtime.name,
            revision=build.revision,
            inputs=await self._inputs(build.commit),
            env=dict(self._template.env),
            docker=self._template.docker,
            commit=build.commit,
            created_at=now,
        )
        await live.flush()
        done = tuple(
            replace(step, state="succeeded", ended_at=now) if step.name == "publish" else step for step in build.steps
        )
        ended: Build = replace(live.build, state="succeeded", ended_at=now, steps=done)
        await builder._store.finish_build(ended, version, 0.0)

    async def _inputs(self, commit: str | None) -> dict[str, str]:
        digest = await self._builder._runtime.base_digest(self._template.base)
        return version_inputs(self._template, self._live.build.lineage, digest, commit)

    async def _exists(self) -> bool:
        build, runtime = self._live.build, self._builder._runtime
        assert build.version is not None
        known = await self._builder._store.find_version(build.version)
        if known is None or known.runtime != runtime.name:
            return False
        return known.image in {image.ref for image in await runtime.list_images()}
