"""Sessions: attach, read, extend, end.

How long an attach lasts: ``wait_s`` is how long the *request* is held. A session that is still waiting then
is answered as it is and stays in its queue until ``wait_until``, which is its creation plus the larger of
``wait_s`` and ``LEAST_QUEUE_S``; ask for it by id meanwhile. A client that goes away cancels nothing: its
session is served, and ends by its lease if nobody comes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.binding import Binder
from controlplane.clock import Clock
from controlplane.errors import NotFound, Permanent
from controlplane.ids import ApiKeyId, SessionId, TemplateKey, TenantId, new_session_id
from controlplane.metrics import Metrics
from controlplane.model.sandbox import Session
from controlplane.sessions.outcome import refuse_ended, refuse_full, refuse_quota
from controlplane.sessions.request import AttachRequest, check_duration, check_request
from controlplane.sessions.targets import Target, Targets
from controlplane.sessions.timing import Timings
from controlplane.store.port import ClaimRequest, ClaimResult, Store

LEAST_QUEUE_S = 30.0
IN_FLIGHT = ("waiting", "binding")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Settings of sessions; see ``settings.ApiSettings`` and ``settings.PoolSettings`` for their meaning."""

    max_wait_s: float = 300.0
    default_wait_s: float = 60.0
    max_waiting_per_pool: int = 1000
    min_remaining_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a waiting session stands. ``position`` 0 is next. ``pool_building``: sandboxes on their way.
    ``step``: what the most advanced of them, or the template's build, is at."""

    position: int | None
    pool_building: int
    step: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachResult:
    """``session`` is attached, or still on its way (``progress``). ``timings_ms``: what each step took."""

    session: Session
    timings_ms: Mapping[str, float]
    progress: Progress | None = None


class SessionService:
    def __init__(
        self, store: Store, binder: Binder, targets: Targets, metrics: Metrics, clock: Clock, limits: SessionLimits
    ) -> None:
        self._store = store
        self._binder = binder
        self._targets = targets
        self._metrics = metrics
        self._clock = clock
        self._limits = limits

    async def attach(
        self,
        tenant: TenantId,
        api_key: str,
        request: AttachRequest,
        timings: Timings | None = None,
        proven_key: ApiKeyId | None = None,
    ) -> AttachResult:
        """A session for the request, attached if a sandbox was ready or became so within ``wait_s``.

        The same idempotency key gives the same session, whatever became of it; one that was left while
        binding is bound again. Errors: Permanent ``invalid_…``; NotFound ``pool_not_found``,
        ``template_not_found``; Conflict ``idempotency_key_reused``; Retryable ``over_quota``,
        ``no_capacity``, ``bind_failed``; Denied ``invalid_key`` if
        ``proven_key`` was revoked; and, if the session ended first, see ``refuse_ended``."""
        timings = timings or Timings(self._clock.monotonic)
        check_request(request)
        wait_s = self._wait_s(request.wait_s)
        result = await self._claim(tenant, api_key, proven_key, request, wait_s)
        timings.mark("claim")
        session = self._settle(result)
        if session.state == "binding":
            session = await self._binder.bind(session, timings.mark)
        if session.state in IN_FLIGHT and wait_s > 0:
            session = await self._store.wait_session(session.id, wait_s)
            timings.mark("wait")
        if session.state == "ended":
            refuse_ended(session)
        spent = timings.finish()
        if session.state in IN_FLIGHT:
            return AttachResult(session=session, timings_ms=spent, progress=await self.progress(session))
        if result.outcome != "repeat":
            self._metrics.attached(session.start, session.start_reason, spent["total"] / 1000)
        return AttachResult(session=session, timings_ms=spent)

    async def get(self, tenant: TenantId, session: str, wait_s: float = 0.0) -> Session:
        """The session, held back up to ``wait_s`` while it is on its way. NotFound ``session_not_found``."""
        found = await self._owned(tenant, session)
        if found.state in IN_FLIGHT and wait_s > 0:
            return await self._store.wait_session(found.id, self._wait_s(wait_s))
        return found

    async def progress(self, session: Session) -> Progress | None:
        """Where the session stands in its pool's queue; None once it left it."""
        if session.state not in IN_FLIGHT:
            return None
        position = await self._store.queue_position(session.id)
        counts = await self._store.pool_counts(session.pool)
        return Progress(position=position, pool_building=counts.building, step=await self._step(session))

    async def list(
        self, tenant: TenantId | None, states: Sequence[str], labels: Mapping[str, str], limit: int
    ) -> list[Session]:
        """Sessions of a tenant (None: of all), those of ``states`` (empty: all) that carry all ``labels``."""
        return await self._store.list_sessions(tenant, states, labels, limit)

    async def keepalive(self, tenant: TenantId, session: str, ttl_s: float | None) -> Session:
        """The lease ends ``ttl_s`` from now (None: the session's own). Conflict ``session_ended``."""
        check_duration(ttl_s, "ttl_s", "invalid_ttl")
        found = await self._owned(tenant, session)
        wanted = found.ttl_s if ttl_s is None else ttl_s
        await self._check_ttl(tenant, wanted)
        return await self._store.extend_session(found.id, wanted)

    async def end(self, tenant: TenantId, session: str, actor: str) -> Session | None:
        """End a session, legal in every state and twice; None when no such session is known.

        Once begun it is finished, even when the caller goes away."""
        try:
            found = await self._owned(tenant, session)
        except NotFound:
            return None
        return await asyncio.shield(self._store.end_session(found.id, "deleted", "", actor))

    async def template_of(self, session: Session) -> TemplateKey | None:
        """The template that the session's pool is of; None once the pool is gone."""
        return await self._targets.template_of(session.pool)

    def forget(self) -> None:
        """Pools, templates or tenants were changed by this process: do not go by older ones."""
        self._targets.forget()

    # -- steps of an attach

    async def _claim(
        self, tenant: TenantId, api_key: str, proven_key: ApiKeyId | None, request: AttachRequest, wait_s: float
    ) -> ClaimResult:
        for last in (False, True):
            target = await self._targets.resolve(tenant, request)
            claim = await self._claim_request(tenant, api_key, proven_key, request, target, wait_s)
            try:
                result = await self._store.claim(claim)
            except NotFound:
                # The pool went since it was read: look again, once.
                self._targets.forget()
                if last:
                    raise
                continue
            self._metrics.claimed(result.outcome)
            return result
        raise AssertionError("the second round returns or raises")

    async def _claim_request(
        self,
        tenant: TenantId,
        api_key: str,
        proven_key: ApiKeyId | None,
        request: AttachRequest,
        target: Target,
        wait_s: float,
    ) -> ClaimRequest:
        limits = await self._targets.tenant(tenant)
        ttl_s = request.ttl_s
        if ttl_s is None:
            ttl_s = min(target.template.session_ttl_s, limits.max_ttl_s)
        else:
            await self._check_ttl(tenant, ttl_s)
        idle = target.template.idle_timeout_s if request.idle_timeout_s is None else request.idle_timeout_s
        return ClaimRequest(
            session=new_session_id(),
            tenant=tenant,
            api_key=api_key,
            proven_key=proven_key,
            pool=target.pool.key,
            ttl_s=ttl_s,
            wait_s=max(wait_s, LEAST_QUEUE_S),
            idle_timeout_s=idle,
            idempotency_key=request.idempotency_key,
            request_digest=request.digest() if request.idempotency_key else "",
            labels=request.labels,
            env=request.env,
            min_remaining_s=self._limits.min_remaining_s,
            cold_reason=target.cold_reason,
            allow_superseded=not target.template.strict,
            max_waiting=self._limits.max_waiting_per_pool,
        )

    def _settle(self, result: ClaimResult) -> Session:
        """The session that the claim made or found; what it refused is raised."""
        session = result.session
        if result.outcome == "no_capacity":
            refuse_full(self._limits.max_waiting_per_pool)
        if session is None:
            refuse_quota(result.sessions_now)
        return session

    async def _check_ttl(self, tenant: TenantId, ttl_s: float) -> None:
        longest = (await self._targets.tenant(tenant)).max_ttl_s
        if ttl_s > longest:
            raise Permanent(
                "invalid_ttl",
                f"ttl_s is {ttl_s:g}; this tenant may ask for {longest:g} at most.",
                hint="Ask for less, and extend the session with keepalive while it is in use.",
            )

    def _wait_s(self, wait_s: float | None) -> float:
        wanted = self._limits.default_wait_s if wait_s is None else wait_s
        if not math.isfinite(wanted) or not 0 <= wanted <= self._limits.max_wait_s:
            raise Permanent(
                "invalid_wait", f"wait_s is {wanted:g}; it must be between 0 and {self._limits.max_wait_s:g}."
            )
        return wanted

    async def _owned(self, tenant: TenantId, session: str) -> Session:
        return await owned_session(self._store, tenant, session)

    async def _step(self, session: Session) -> str | None:
        building = [s for s in await self._store.list_sandboxes(session.pool) if s.state == "building"]
        if building:
            return min(building, key=lambda s: s.created_at).step
        return None


async def owned_session(store: Store, tenant: TenantId, session: str) -> Session:
    """The tenant's session. NotFound ``session_not_found`` also when it is another tenant's."""
    missing = NotFound("session_not_found", f"There is no session {session[:80]!r}.")
    try:
        found = await store.get_session(SessionId(session))
    except NotFound:
        raise missing from None
    if found.tenant != tenant:
        raise missing
    return found
