"""The store on Redis or Valkey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Pool
from controlplane.store.builds import Builds
from controlplane.store.claims import Claims
from controlplane.store.codec import LastSeen
from controlplane.store.connection import Link
from controlplane.store.events import Events
from controlplane.store.keys import Keys
from controlplane.store.leadership import Leading
from controlplane.store.observe import Observing
from controlplane.store.presence import Presence
from controlplane.store.sandboxes import Sandboxes
from controlplane.store.schema import MIGRATIONS, SCHEMA_VERSION, Migration, Schema
from controlplane.store.scripts import ScriptConfig, Scripts
from controlplane.store.sessions import Sessions
from controlplane.store.templates import Templates
from controlplane.store.tenancy import Tenancy
from controlplane.store.wakeups import SessionWakeups

if TYPE_CHECKING:
    from controlplane.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Times in seconds. ``bind_limit_s``: a session still binding after it ends with ``wait_timeout``.
    ``drain_limit_s``: a draining sandbox counts as stuck after it. ``max_ended_sessions``: records of ended
    sessions kept at most, however recent. ``keep_builds``: ended builds kept per template. ``max_pools_per_tenant``
    counts those of one-off attaches, too; a lineage is a template at one ref."""

    connect_timeout_s: float = 1.0
    operation_timeout_s: float = 2.0
    max_events: int = 100_000
    ended_session_keep_s: float = 86_400.0
    max_ended_sessions: int = 100_000
    bind_limit_s: float = 30.0
    drain_limit_s: float = 60.0
    keep_builds: int = 20
    max_pools_per_tenant: int = 1000
    max_templates_per_tenant: int = 500
    max_lineages_per_template: int = 500


class RedisStore(Claims, Sessions, Sandboxes, Templates, Builds, Tenancy, Leading, Presence, Observing, Events):
    """Fulfils ``store.port.Store``. Makes no connection before the first call; ``open`` checks the schema."""

    def __init__(
        self,
        url: str,
        deployment: str,
        options: StoreOptions | None = None,
        *,
        schema_version: int = SCHEMA_VERSION,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        options = options or StoreOptions()
        config = ScriptConfig(
            schema=schema_version,
            max_events=options.max_events,
            ended_session_keep_s=options.ended_session_keep_s,
            max_ended_sessions=options.max_ended_sessions,
            bind_limit_s=options.bind_limit_s,
            drain_limit_s=options.drain_limit_s,
            keep_builds=options.keep_builds,
            max_pools_per_tenant=options.max_pools_per_tenant,
            max_templates_per_tenant=options.max_templates_per_tenant,
            max_lineages_per_template=options.max_lineages_per_template,
        )
        self._key = Keys(deployment)
        self._link = Link(
            url,
            self._key.prefix,
            Scripts(config),
            connect_timeout_s=options.connect_timeout_s,
            operation_timeout_s=options.operation_timeout_s,
        )
        self._schema = Schema(self._link, schema_version, migrations)
        self._link.on_empty = self._schema.ensure
        self._seen_pools = LastSeen(Pool)
        self._seen_sandboxes = LastSeen(Sandbox)
        self._wakeups = SessionWakeups(self._link, self._key("sessions_moved"))

    async def open(self) -> None:
        await self.ensure_schema()

    async def ensure_schema(self) -> bool:
        return await self._schema.ensure()

    async def close(self) -> None:
        await self._wakeups.close()
        await self._link.close()

    async def ping(self) -> None:
        await self._link.command("PING")

    async def now(self) -> float:
        return await self._now()


if TYPE_CHECKING:
    # The type checker compares every method with the port.
    _fulfils: type[Store] = RedisStore
