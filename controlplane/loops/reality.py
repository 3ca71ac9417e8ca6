"""Records against what really runs.

Every difference is looked at a second time, one by one, before anything is done about it: the two lists are
not read at the same moment, and sandboxes come and go in between.
"""

from __future__ import annotations

import asyncio
import logging

from agents.wire import Binding
from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Conflict, NotFound, WarmpoolError
from controlplane.ids import BuildId, SandboxId, SessionId, TenantId, VersionId
from controlplane.model.sandbox import Sandbox, Session
from controlplane.provisioning.labels import SESSION, record_from_labels
from controlplane.runtime.port import RunningSandbox, Runtime
from controlplane.store.port import Store

log = logging.getLogger(__name__)

_LIVING = ("ready", "claimed", "paused")


class Reality:
    """``adopted_ttl_s``: lease of a session whose record was lost. ``grace_s``: a partial sandbox without a
    record is left alone for as long: whoever makes it may be about to find out that it is not wanted.
    ``patience_s``: one that does not say who holds it is asked for as long: its session may keep it that busy."""

    def __init__(
        self,
        *,
        store: Store,
        runtime: Runtime,
        agents: AgentClient,
        adopted_ttl_s: float = 3600.0,
        grace_s: float = 5.0,
        patience_s: float = 60.0,
        probe_timeout_s: float = 2.0,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._agents = agents
        self._adopted_ttl_s = adopted_ttl_s
        self._grace_s = grace_s
        self._patience_s = patience_s
        self._silent_since: dict[SandboxId, float] = {}
        self._probe_timeout_s = probe_timeout_s

    async def compare(self) -> None:
        running = {found.id: found for found in await self._runtime.list_sandboxes()}
        records = {record.id: record for record in await self._store.list_sandboxes(None)}
        for record in records.values():
            if record.state in _LIVING:
                found = running.get(record.id)
                if found is None or found.state == "stopped":
                    await self._missing(record.id)
        unknown = [found for found in running.values() if found.id not in records]
        self._silent_since = {found.id: at for found in unknown if (at := self._silent_since.get(found.id)) is not None}
        for found in unknown:
            await self._unknown(found)

    async def _missing(self, sandbox: SandboxId) -> None:
        """The record says it lives: its status follows the runtime, with the reason."""
        found = await self._runtime.inspect(sandbox)
        if found is not None and found.state != "stopped":
            return
        record = await self._store.find_sandbox(sandbox)
        if record is None or record.state not in _LIVING:
            return
        detail = f" ({found.detail})" if found is not None and found.detail else ""
        what = "has stopped" if found is not None else "is no longer there"
        log.warning("sandbox %s %s%s", sandbox, what, detail)
        try:
            await self._store.fail_sandbox(sandbox, f"gone: the sandbox {what}{detail}", "reaper")
        except (Conflict, NotFound) as error:
            log.info("sandbox %s moved on: %s", sandbox, error.message)

    async def _unknown(self, found: RunningSandbox) -> None:
        """It runs, and no record knows it."""
        again = await self._runtime.inspect(found.id)
        if again is None or await self._store.find_sandbox(found.id) is not None:
            return
        if again.labels.get("purpose") == "build":
            if await self._is_building(again):
                return
        elif again.state == "running" and again.door is not None:
            adopted = await self._adopt(again, again.door)
            if adopted or (adopted is None and await self._is_given_time(again.id)):
                return
        elif again.state == "partial" and await self._store.now() - again.created_at < self._grace_s:
            return
        log.warning("destroying sandbox %s: it runs without a record", found.id)
        await self._runtime.destroy(found.id)
        self._agents.forget(found.id)

    async def _is_building(self, found: RunningSandbox) -> bool:
        try:
            build = await self._store.get_build(BuildId(found.labels.get("build", "")))
        except NotFound:
            return False
        return build.state in ("queued", "running") and build.sandbox == found.id

    async def _is_given_time(self, sandbox: SandboxId) -> bool:
        now = await self._store.now()
        return now - self._silent_since.setdefault(sandbox, now) < self._patience_s

    async def _adopt(self, found: RunningSandbox, door: str) -> bool | None:
        """Its record was lost. One that a session holds goes on; one that nobody holds is only kept when it is
        ready and its version still known; anything doubtful is destroyed, never handed out. None: it does not
        answer."""
        if found.labels.get("purpose") != SESSION:
            return False
        try:
            async with asyncio.timeout(self._probe_timeout_s):
                binding = await self._agents.binding(Door(found.id, door))
                ready = binding.claim_id is None and (await self._agents.ready(Door(found.id, door), 0.0)).ready
        except (TimeoutError, WarmpoolError) as error:
            log.warning("sandbox %s does not say who holds it: %s", found.id, str(error) or type(error).__name__)
            return None
        now = await self._store.now()
        record = record_from_labels(
            found.id,
            found.labels,
            runtime=self._runtime.name,
            door=door,
            state="ready" if binding.claim_id is None else "claimed",
            now=now,
            max_age_s=self._adopted_ttl_s,
        )
        if record is None:
            return False
        if binding.claim_id is None:
            return ready and await self._adopt_ready(record)
        return await self._adopt_held(record, binding, now)

    async def _adopt_ready(self, record: Sandbox) -> bool:
        if await self._store.find_version(VersionId(record.version)) is None:
            return False
        try:
            pool = await self._store.get_pool(record.pool)
        except NotFound:
            return False
        return pool.uid == record.pool_uid and await self._store.adopt(record, None)

    async def _adopt_held(self, record: Sandbox, binding: Binding, now: float) -> bool:
        assert binding.claim_id is not None
        session_id = SessionId(binding.claim_id)
        try:
            known = await self._store.get_session(session_id)
        except NotFound:
            known = None
        if known is not None and (known.state == "ended" or known.sandbox != record.id):
            return False
        session = known or Session(
            id=session_id,
            tenant=TenantId(binding.tenant or record.tenant),
            pool=record.pool,
            state="attached",
            ttl_s=self._adopted_ttl_s,
            sandbox=record.id,
            door=record.door,
            version=record.version,
            start="warm",
            start_reason="ready_in_pool",
            labels=dict(binding.labels),
            created_at=binding.bound_at or now,
            claimed_at=binding.bound_at or now,
            attached_at=binding.bound_at or now,
            expires_at=now + self._adopted_ttl_s,
            last_activity_at=binding.last_activity_at,
        )
        log.warning("adopting sandbox %s with session %s", record.id, session_id)
        return await self._store.adopt(record, session)
