"""What routes are given, and who is calling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Query, Request
from fastapi.openapi.models import HTTPBearer as BearerModel
from fastapi.security.base import SecurityBase

from controlplane.api.edge import BODY_WITHIN_S, STARTED, bearer_of
from controlplane.artifacts.port import BuildLogs
from controlplane.clock import Clock
from controlplane.errors import Denied
from controlplane.ids import TenantId
from controlplane.metrics import Metrics
from controlplane.model.tenancy import Role
from controlplane.pool.service import PoolService
from controlplane.runtime.port import Capabilities
from controlplane.sessions.machine import SessionMachine
from controlplane.sessions.service import SessionService
from controlplane.sessions.timing import Timings
from controlplane.store.port import Store
from controlplane.templates.service import TemplateService
from controlplane.tenancy.service import Caller, TenancyService


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that the service needs, and whether it is there."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """See ``settings.ApiSettings``; ``step_timeout_s`` and ``default_max_total``: what templates and pools that
    name none get. ``event_heartbeat_s``: longest silence of a stream of events. ``body_within_s``: the
    longest that a JSON body may take to come."""

    max_body_bytes: int = 1_048_576
    max_upload_bytes: int = 1_073_741_824
    max_wait_s: float = 300.0
    event_heartbeat_s: float = 10.0
    body_within_s: float = BODY_WITHIN_S
    step_timeout_s: float = 600.0
    default_max_total: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDeps:
    """Everything ``create_app`` needs. ``parts``: what /readyz asks, beyond the store itself.
    ``capabilities``: of the deployment's runtime, None while no worker reported them."""

    store: Store
    sessions: SessionService
    machine: SessionMachine
    tenancy: TenancyService
    templates: TemplateService
    pools: PoolService
    logs: BuildLogs
    capabilities: Callable[[], Awaitable[Capabilities | None]]
    metrics: Metrics
    clock: Clock
    limits: ApiLimits = ApiLimits()
    parts: Sequence[Callable[[], Awaitable[Part]]] = ()


@dataclass(frozen=True, slots=True)
class Acting:
    """A caller, and the tenant that the request is about. ``chosen``: an operator named it, or it is the
    caller's own because it may have no other."""

    caller: Caller
    tenant: TenantId
    chosen: bool

    @property
    def listed(self) -> TenantId | None:
        """Whose things a list shows: None, of all tenants, for an operator who named none."""
        return self.tenant if self.chosen else None


class KeyAuth(SecurityBase):
    """Authentication by API key; the roles that may call."""

    def __init__(self, *roles: Role, recall: bool = False) -> None:
        """``recall``: see ``TenancyService.recall``."""
        self.model = BearerModel(description="An API key: `wp_<id>_<secret>`.")
        self.scheme_name = "ApiKey"
        self._roles = frozenset(roles)
        self._recall = recall

    async def __call__(
        self,
        request: Request,
        tenant: Annotated[
            str | None, Query(description="Operators only: the tenant that this is about. Default: the key's own.")
        ] = None,
    ) -> Acting:
        tenancy = deps_of(request).tenancy
        prove = tenancy.recall if self._recall else tenancy.authenticate
        caller = await prove(bearer_of(request.scope))
        if caller.role not in self._roles:
            raise Denied(
                "role_not_allowed",
                f"A key of role {caller.role} may not do this.",
                hint=f"It takes a key of role {' or '.join(sorted(self._roles))}.",
            )
        chosen = tenant is not None or caller.role != "ops"
        return Acting(caller, caller.acting_for(tenant), chosen)


Anyone = Annotated[Acting, Depends(KeyAuth("platform", "ops", "browser-intent"))]
Platform = Annotated[Acting, Depends(KeyAuth("platform", "ops"))]
Attaching = Annotated[Acting, Depends(KeyAuth("platform", "ops", recall=True))]
Ops = Annotated[Acting, Depends(KeyAuth("ops"))]


def deps_of(request: Request) -> ApiDeps:
    return cast(ApiDeps, request.app.state.deps)


def timings_of(request: Request) -> Timings:
    """Timings that began when the request came in."""
    return Timings(deps_of(request).clock.monotonic, request.scope[STARTED])
