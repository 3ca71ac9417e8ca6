"""Any order of claims, binds, failures, drains and expiries, against a model small enough to be obviously right.

After every step the records are compared with the model, and every index with the records.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
import redis.asyncio as aredis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from controlplane.errors import Conflict
from controlplane.ids import SandboxId, SessionId, VersionId, new_sandbox_id, new_session_id
from controlplane.model.tenancy import Tenant
from controlplane.store.keys import Keys
from controlplane.store.port import ClaimResult, NewSandbox
from controlplane.store.redis_store import RedisStore, StoreOptions
from tests.store.invariants import check_invariants
from tests.store.rewind import Rewind
from tests.store.world import ACME, POOL, V1, V2, World, new_world

T = TypeVar("T")
_numbers = itertools.count(1)
MAX_TOTAL, MAX_SESSIONS, MAX_WAITING = 6, 5, 3
KEYS = st.sampled_from([None, None, "a", "b"])
PICK = st.integers(min_value=0, max_value=1000)


@dataclass
class Box:
    state: str
    version: VersionId
    session: SessionId | None = None


@dataclass
class Lease:
    state: str
    sandbox: SandboxId | None = None


class PoolMachine(RuleBasedStateMachine):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.deployment = f"m{os.getpid()}-{next(_numbers)}"
        self.loop = asyncio.new_event_loop()
        self.boxes: dict[SandboxId, Box] = {}
        self.leases: dict[SessionId, Lease] = {}
        self.queue: list[SessionId] = []
        self.keys: dict[str, SessionId] = {}
        self.current, self.strict = V1, False
        self.run(self._begin())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _begin(self) -> None:
        self.store = RedisStore(self.url, self.deployment, StoreOptions(operation_timeout_s=20.0))
        self.world: World = await new_world(self.store)
        await self.store.put_tenant(Tenant(id=ACME, max_sessions=MAX_SESSIONS))
        self.pool = await self.world.put_pool(max_total=MAX_TOTAL)
        await self.world.publish(V2)
        await self.world.publish(V1)
        self.client = aredis.Redis.from_url(self.url, decode_responses=True, protocol=2)
        self.rewind = Rewind(self.client, Keys(self.deployment))
        self.template = await self.world.sandbox()
        await self.store.fail_sandbox(self.template.id, "model", "test")
        self.boxes[self.template.id] = Box("failed", V1)

    def teardown(self) -> None:
        async def end() -> None:
            await self.rewind.forget_everything()
            await self.client.aclose()
            await self.store.close()

        self.run(end())
        self.loop.close()

    # -- the model

    def live(self) -> int:
        return sum(lease.state != "ended" for lease in self.leases.values())

    def fit(self) -> set[SandboxId]:
        """What a claim may take now: the current version, else, unless strict, the other."""
        ready = {key for key, box in self.boxes.items() if box.state == "ready"}
        current = {key for key in ready if self.boxes[key].version == self.current}
        return current or (set() if self.strict else ready)

    def taken(self, session: SessionId, sandbox: SandboxId | None, among: set[SandboxId]) -> None:
        assert sandbox in among
        assert sandbox is not None
        self.leases[session] = Lease("binding", sandbox)
        self.boxes[sandbox].state, self.boxes[sandbox].session = "claimed", session

    def ended(self, session: SessionId) -> None:
        lease = self.leases[session]
        if lease.state == "waiting":
            self.queue.remove(session)
        elif lease.state != "ended" and lease.sandbox is not None:
            self.boxes[lease.sandbox] = replace(self.boxes[lease.sandbox], state="draining", session=None)
        lease.state = "ended"

    def lost(self, sandbox: SandboxId) -> None:
        """The sandbox fails; what its session then does."""
        box = self.boxes[sandbox]
        session, box.state, box.session = box.session, "failed", None
        if session is None:
            return
        if self.leases[session].state == "binding":
            self.leases[session] = Lease("waiting")
            self.queue.insert(0, session)
        else:
            self.leases[session].state = "ended"

    def some(self, pick: int, states: set[str]) -> SandboxId | None:
        found = [key for key, box in self.boxes.items() if box.state in states]
        return found[pick % len(found)] if found else None

    def lease_in(self, pick: int, states: set[str]) -> SessionId | None:
        found = [key for key, lease in self.leases.items() if lease.state in states]
        return found[pick % len(found)] if found else None

    # -- sandboxes

    @rule(version=st.sampled_from([V1, V2]), replay=st.booleans())
    def create(self, version: VersionId, replay: bool) -> None:
        sandbox = replace(self.template, id=new_sandbox_id(), version=version, state="building")
        for _ in range(1 + replay):
            made = self.run(self.store.create_sandbox(NewSandbox(sandbox=sandbox, count_limit=99), self.world.fence))
            if sandbox.id not in self.boxes:
                assert made == (len(self.boxes) < MAX_TOTAL)
                if made:
                    self.boxes[sandbox.id] = Box("building", version)
            else:
                assert made

    @rule(pick=PICK, replay=st.booleans())
    def become_ready(self, pick: int, replay: bool) -> None:
        key = self.some(pick, {"building"})
        if key is None:
            return
        box = self.boxes[key]
        may_serve = box.version == self.current or not self.strict
        served = self.run(self.store.sandbox_ready(key, 3600.0))
        if self.queue and may_serve:
            assert served is not None and served.id == self.queue.pop(0)
            self.taken(served.id, served.sandbox, {key})
        else:
            assert served is None
            box.state = "ready"
        if replay:
            assert self.run(self.store.sandbox_ready(key, 3600.0)) == served

    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        key = self.some(pick, {"building", "ready", "claimed", "failed", "draining"})
        if key is None:
            return
        if self.boxes[key].state == "draining":
            with pytest.raises(Conflict):
                self.run(self.store.fail_sandbox(key, "broke", "test"))
            return
        failed = self.run(self.store.fail_sandbox(key, "broke", "test"))
        assert failed is not None and failed.state == "failed"
        if self.boxes[key].state != "failed":
            self.lost(key)

    @rule(pick=PICK, unclaimed_only=st.booleans(), replay=st.booleans())
    def drain(self, pick: int, unclaimed_only: bool, replay: bool) -> None:
        key = self.some(pick, {"building", "ready", "claimed", "failed", "draining"})
        if key is None:
            return
        box = self.boxes[key]
        held = box.session
        for _ in range(1 + replay):
            drained = self.run(self.store.drain_sandbox(key, "shrink", "test", self.world.fence, unclaimed_only))
            assert drained == (held is None or not unclaimed_only)
        if held is not None and drained:
            self.ended(held)
        elif drained:
            box.state = "draining"

    @rule(pick=PICK)
    def gone(self, pick: int) -> None:
        key = self.some(pick, {"draining", "ready", "claimed"})
        if key is None:
            return
        if self.boxes[key].state != "draining":
            with pytest.raises(Conflict):
                self.run(self.store.sandbox_gone(key))
            return
        self.run(self.store.sandbox_gone(key))
        self.run(self.store.sandbox_gone(key))
        del self.boxes[key]

    # -- sessions

    @rule(key=KEYS)
    def claim(self, key: str | None) -> None:
        session = new_session_id()
        result = self.run(self.world.claim(session=session, idempotency_key=key, max_waiting=MAX_WAITING))
        self.check_claim(session, key, result)

    def check_claim(self, session: SessionId, key: str | None, result: ClaimResult) -> None:
        among = self.fit()
        if key in self.keys:
            assert result.outcome == "repeat"
            assert result.session is not None and result.session.id == self.keys[key]
        elif self.live() >= MAX_SESSIONS:
            assert result.outcome == "over_quota"
        elif among:
            assert result.outcome == "claimed" and result.session is not None
            self.taken(session, result.session.sandbox, among)
        elif len(self.queue) >= MAX_WAITING:
            assert result.outcome == "no_capacity"
        else:
            assert (result.outcome, result.position) == ("waiting", len(self.queue))
            self.leases[session] = Lease("waiting")
            self.queue.append(session)
        if key is not None and result.outcome in ("claimed", "waiting"):
            self.keys[key] = session
        assert result.sessions_now == self.live()

    @rule(pick=PICK, replay=st.booleans())
    def bound(self, pick: int, replay: bool) -> None:
        key = self.lease_in(pick, {"binding"})
        if key is None:
            return
        lease = self.leases[key]
        assert lease.sandbox is not None
        for _ in range(1 + replay):
            assert self.run(self.store.bound(key, lease.sandbox)).state == "attached"
        lease.state = "attached"

    @rule(pick=PICK)
    def bound_too_late(self, pick: int) -> None:
        key = self.lease_in(pick, {"waiting", "ended"})
        if key is not None:
            with pytest.raises(Conflict):
                self.run(self.store.bound(key, self.leases[key].sandbox or SandboxId("sb-none")))

    @rule(pick=PICK, replay=st.booleans())
    def bind_fails(self, pick: int, replay: bool) -> None:
        key = self.lease_in(pick, {"binding"})
        if key is None:
            return
        bad = self.leases[key].sandbox
        assert bad is not None
        among = self.fit()
        result = self.run(self.store.claim_next(key, bad, "no answer"))
        self.lost(bad)
        if among:
            assert result.outcome == "claimed" and result.session is not None
            self.queue.remove(key)
            self.taken(key, result.session.sandbox, among)
        else:
            assert (result.outcome, result.position) == ("waiting", 0)
        if replay:
            again = self.run(self.store.claim_next(key, bad, "no answer"))
            assert (again.outcome, again.session) == (result.outcome, result.session)

    @rule(pick=PICK, replay=st.booleans())
    def end(self, pick: int, replay: bool) -> None:
        key = self.lease_in(pick, {"waiting", "binding", "attached", "ended"})
        if key is None:
            return
        for _ in range(1 + replay):
            assert self.run(self.store.end_session(key, "deleted", "", "test")).state == "ended"
        self.ended(key)

    @rule(pick=PICK)
    def run_out(self, pick: int) -> None:
        key = self.lease_in(pick, {"waiting", "binding", "attached"})
        if key is None:
            return
        self.run(self.rewind.session(key, 1000.0))
        ended = self.run(self.store.due_sessions(100))
        assert [s.id for s in ended] == [key]
        self.ended(key)

    @precondition(lambda self: self.queue)
    @rule()
    def serve_waiting(self) -> None:
        for served in self.run(self.store.serve_waiting(POOL, 100)):
            among = self.fit()
            assert served.id == self.queue.pop(0)
            self.taken(served.id, served.sandbox, among)
        assert not (self.queue and self.fit())

    # -- the template

    @rule(strict=st.booleans())
    def set_strict(self, strict: bool) -> None:
        self.run(self.world.put_template(strict=strict))
        self.strict = strict

    @rule()
    def publish_the_other_version(self) -> None:
        self.current = V2 if self.current == V1 else V1
        self.run(self.world.publish(self.current))

    # -- always

    @invariant()
    def records_are_as_in_the_model(self) -> None:
        sandboxes = {s.id: (s.state, s.session) for s in self.run(self.store.list_sandboxes(None))}
        assert sandboxes == {key: (box.state, box.session) for key, box in self.boxes.items()}
        sessions = {s.id: s.state for s in self.run(self.store.list_sessions(None, [], {}, 10_000))}
        assert sessions == {key: lease.state for key, lease in self.leases.items()}
        places = [self.run(self.store.queue_position(key)) for key in self.queue]
        assert places == list(range(len(self.queue)))

    @invariant()
    def indexes_agree_with_records(self) -> None:
        self.run(check_invariants(self.url, self.deployment))


def test_no_order_of_events_breaks_the_pool(valkey_url: str) -> None:
    run_state_machine_as_test(
        lambda: PoolMachine(valkey_url),
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            # Without shrinking: it takes longer than a test may. Add Phase.shrink to study a failure.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
