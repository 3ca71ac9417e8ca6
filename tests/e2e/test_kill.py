"""Any process may be killed at any moment: attached sessions go on, nothing is held twice, nothing is left over.

The moments and victims are random; the seed is printed, and WARMPOOL_E2E_SEED repeats it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from controlplane.egressclient.http import HttpEgressGateway
from tests.e2e.conftest import Source
from tests.e2e.live import SMALL, Live, connected, live, machine_of, state_folder, until
from warmpool import Sandbox, SandboxException, Warmpool

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("WARMPOOL_E2E_KILLS", "20"))
ROLES = ("valkey", "api", "scheduler", "worker", "builder", "egress")
POOL, REBUILT = "held", "rebuilt"
READY, HELD = 2, 3
ANSWERS_WITHIN_S = 45.0


@dataclass(frozen=True)
class Held:
    """An attached session, and the command that must live as long as it does."""

    session: str
    machine: str
    command: str
    pid: int


@dataclass
class Stage:
    deployment: Live
    dice: random.Random
    held: list[Held] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def attach(self) -> Held:
        """Attach with a key that makes repeats harmless, until it is answered, and start a command in it."""
        key = f"key-{self.dice.getrandbits(64):x}"

        def attached() -> Sandbox:
            with self.deployment.api() as api:
                return api.attach(POOL, idempotency_key=key, wait=20)

        sandbox = until("a session is attached", attached, within_s=90)
        script = "while true; do echo beat; sleep 0.5; done"

        def started() -> tuple[str, int]:
            handle = connected(self.deployment, sandbox.id).commands.run(script, background=True)
            pid = handle.status().pid
            assert pid is not None
            return handle.id, pid

        command, pid = until("its command runs", started, within_s=ANSWERS_WITHIN_S)
        machine = until("its sandbox is known", lambda: machine_of(connected(self.deployment, sandbox.id)))
        assert machine not in self.used, "a sandbox was handed out a second time"
        self.used.add(machine)
        return Held(session=sandbox.id, machine=machine, command=command, pid=pid)

    def end(self, held: Held) -> None:
        until("a session ends", lambda: self.deployment.http("DELETE", f"/v1/sessions/{held.session}").is_success)

    def answers(self, held: Held) -> None:
        """The session answers a new command, and its old one still runs as the same process."""

        def look() -> bool:
            with contextlib.closing(connected(self.deployment, held.session)) as sandbox:
                assert sandbox.commands.run("echo alive", timeout=10).stdout == "alive\n"
                status = sandbox.commands.connect(held.command).status()
                assert (status.state, status.pid) == ("running", held.pid)
                assert machine_of(sandbox) == held.machine
                return True

        until(f"session {held.session} answers", look, within_s=ANSWERS_WITHIN_S)

    def disturb(self, number: int) -> threading.Thread:
        """Something that is under way when the blow falls: a claim and its refill, an end, a build."""

        def claim_and_end() -> None:
            try:
                with self.deployment.api(request_timeout=10) as api:
                    sandbox = api.attach(POOL, wait=5)
                    sandbox.kill()
            except SandboxException:
                pass

        def rebuild() -> None:
            try:
                with self.deployment.api(request_timeout=10) as api:
                    body = {"base": "debian12", "resources": SMALL, "setup": [f"echo {number}; sleep 1; echo > made"]}
                    api.templates.put(REBUILT, body)
            except SandboxException:
                pass

        thread = threading.Thread(target=self.dice.choice((claim_and_end, rebuild, claim_and_end)))
        thread.start()
        return thread

    def strike(self) -> str:
        """Kill something, now and then several things at once; what it was."""
        victim = self.dice.choice((*ROLES, *ROLES, "supervisor", "everything"))
        if victim in ("supervisor", "everything"):
            self.deployment.kill("supervisor" if victim == "supervisor" else None)
            self.deployment.up()
            return victim
        victims = {victim, *self.dice.sample(ROLES, self.dice.choice((0, 0, 1, 2)))}
        for role in sorted(victims):
            until(f"a {role} runs", lambda role=role: self.deployment.kill(role))  # type: ignore[misc]
        return " and ".join(sorted(victims))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def stage(source: Source) -> Iterator[Stage]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    seed = int(os.environ.get("WARMPOOL_E2E_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\nWARMPOOL_E2E_SEED={seed}", flush=True)
    settings = {"WARMPOOL_API__PORT": str(free_port()), "WARMPOOL_POOL__BACKOFF_BASE_S": "0.5"}
    with (
        state_folder() as folder,
        live(f"kill-{os.getpid()}", folder / "s", settings=settings) as deployment,
    ):
        # With a disk limit there are loop devices to lose as well.
        disk = {**SMALL, "disk_bytes": 128 << 20}
        deployment.declare(
            POOL, min_ready=READY, max_total=HELD + READY + 1, repository=source.repository, resources=disk
        )
        deployment.declare(REBUILT, min_ready=1, max_total=2, setup=["echo 0"])
        deployment.filled(POOL, READY)
        deployment.filled(REBUILT, 1)
        yield Stage(deployment=deployment, dice=random.Random(seed))


def test_attached_sessions_survive_twenty_kills_and_nothing_is_lost_or_left_over(stage: Stage) -> None:
    deployment = stage.deployment
    stage.held = [stage.attach() for _ in range(HELD)]
    for number in range(ROUNDS):
        under_way = stage.disturb(number)
        time.sleep(stage.dice.uniform(0, 1.0))
        began = time.monotonic()
        victim = stage.strike()
        for held in stage.held:
            stage.answers(held)
        print(f"round {number}: {victim}, all answer after {time.monotonic() - began:.1f} s", flush=True)
        if stage.dice.random() < 0.3:
            ended = stage.held.pop(stage.dice.randrange(len(stage.held)))
            stage.end(ended)
            stage.held.append(stage.attach())
        under_way.join(60)
        assert not under_way.is_alive()
    settle(stage)
    assert len({held.machine for held in stage.held}) == HELD
    with deployment.api() as api:
        nothing_is_left_over(stage, api)
        the_quota_counts_right(stage, api)
        what_was_interrupted_is_built_in_the_end(api)
        for held in stage.held:
            api.sessions.end(held.session)
        deployment.remove(POOL)
        deployment.remove(REBUILT)
        until("no sandbox is left", lambda: not deployment.recorded())
    until("nothing on the host is left", lambda: not deployment.traces(), within_s=30)
    until("no door is left", lambda: not doors(deployment), within_s=60)


def settle(stage: Stage) -> None:
    """Sessions that a killed client left behind are ended; the pool is at its target again."""
    mine = {held.session for held in stage.held}
    with stage.deployment.api() as api:
        for session in api.sessions.list():
            if session.id not in mine and session.state != "ended":
                api.sessions.end(session.id)
        until("builds are over", lambda: not [b for b in api.builds.list() if b.state in ("queued", "running")])
    stage.deployment.filled(POOL, READY)
    stage.deployment.filled(REBUILT, 1)


def nothing_is_left_over(stage: Stage, api: Warmpool) -> None:
    def agree() -> bool:
        traces, recorded = stage.deployment.traces(), stage.deployment.recorded()
        extra = {sandbox: what for sandbox, what in traces.items() if sandbox not in recorded}
        assert not extra and set(traces) == recorded, extra or recorded - set(traces)
        return True

    until("records and host agree", agree, within_s=30)
    holders = {record.id: record.session for record in api.sandboxes.list() if record.session is not None}
    assert holders == {held.machine: held.session for held in stage.held}
    pool = api.pools.get(POOL).counts
    assert (pool.claimed, pool.ready, pool.waiting) == (HELD, READY, 0)


def the_quota_counts_right(stage: Stage, api: Warmpool) -> None:
    api.put_tenant("default", max_sessions=HELD + 1)
    one_more = until("the new quota is in force", lambda: api.attach(POOL))
    answer = stage.deployment.http("POST", "/v1/sessions", {"pool": POOL, "wait_s": 0})
    assert (answer.status_code, answer.json()["code"]) == (429, "over_quota")
    one_more.kill()
    assert stage.deployment.http("POST", "/v1/sessions", {"pool": POOL, "wait_s": 30}).status_code == 201


def what_was_interrupted_is_built_in_the_end(api: Warmpool) -> None:
    last = max(api.builds.list(template=REBUILT), key=lambda build: build.created_at)
    assert (last.state, last.error) == ("succeeded", None)


def doors(deployment: Live) -> list[str]:
    async def ask() -> list[str]:
        gateway = HttpEgressGateway(deployment.folder / "run" / "egress.sock")
        try:
            return [door.id for door in await gateway.list_doors()]
        finally:
            await gateway.aclose()

    return asyncio.run(ask())
