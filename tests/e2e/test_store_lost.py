"""The store stops answering, dies, or comes back empty: what runs lives on, and the rest recovers by itself."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.conftest import Source
from tests.e2e.live import Live, connected, machine_of, until
from warmpool import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
POOL = "store-lost"
PROMPT_S = 5.0


@pytest.fixture
def deployment(shared: Live, source: Source) -> Iterator[Live]:
    """The shared deployment with a pool; at the end it answers and holds nothing of this test."""
    declare(shared, source)
    yield shared
    until("it answers", lambda: shared.http("GET", "/readyz").status_code == 200)
    declare(shared, source)
    shared.remove(POOL)
    until("no sandbox is left", lambda: not shared.recorded() and not shared.traces(), within_s=90)


def declare(deployment: Live, source: Source) -> None:
    deployment.declare(POOL, min_ready=1, max_total=3, repository=source.repository)
    deployment.filled(POOL, 1)


class Ticking:
    """A session in which a command counts on, whatever becomes of the control plane."""

    def __init__(self, deployment: Live, sandbox: Sandbox) -> None:
        self.deployment = deployment
        self.session, self.machine = sandbox.id, machine_of(sandbox)
        script = "n=0; while true; do n=$((n+1)); echo $n > count; sleep 0.2; done"
        self.command = sandbox.commands.run(script, background=True)
        self.pid = self.command.status().pid

    def count(self) -> int:
        """Read on the host, so that nothing of the control plane is in between."""
        upper = self.deployment.folder / "local" / "sandboxes" / self.machine / "data" / "upper"
        with contextlib.suppress(OSError, ValueError):
            return int((upper / "workspace" / "count").read_text())
        return 0

    def counts_on(self) -> None:
        before = self.count()
        until("the command counts on", lambda: self.count() > before, within_s=20)

    def works(self) -> None:
        """The session answers through the control plane, and its command is the one that was started."""

        def look() -> bool:
            sandbox = connected(self.deployment, self.session)
            assert sandbox.commands.run("echo alive").stdout == "alive\n"
            status = sandbox.commands.connect(self.command.id).status()
            assert (status.state, status.pid, machine_of(sandbox)) == ("running", self.pid, self.machine)
            return True

        until("the session works", look, within_s=60)


@pytest.fixture
def ticking(deployment: Live) -> Iterator[Ticking]:
    with deployment.api() as api:
        yield Ticking(deployment, api.attach(POOL, metadata={"job": "ticking"}))


def refused(answer: httpx.Response, took_s: float) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "store_unavailable"), answer.text
    assert int(answer.headers["Retry-After"]) >= 1
    assert problem["hint"]
    assert took_s < PROMPT_S


def test_a_store_that_hangs_is_told_promptly_and_everything_goes_on_when_it_answers_again(
    deployment: Live, ticking: Ticking
) -> None:
    requests: list[tuple[str, str, object]] = [
        ("GET", "/v1/sessions", None),
        ("POST", "/v1/sessions", {"pool": POOL}),
        ("GET", f"/v1/sessions/{ticking.session}", None),
        ("POST", f"/v1/sessions/{ticking.session}/exec", {"script": "true"}),
        ("PUT", f"/v1/pools/{POOL}", {"template": POOL, "min_ready": 1, "max_total": 3}),
        ("DELETE", f"/v1/sessions/{ticking.session}", None),
    ]

    def timed(request: tuple[str, str, object]) -> tuple[httpx.Response, float]:
        began = time.monotonic()
        return deployment.http(*request), time.monotonic() - began

    deployment.kill("valkey", signal.SIGSTOP)
    try:
        ticking.counts_on()
        with ThreadPoolExecutor(64) as many:
            for answer, took_s in many.map(timed, requests * 10):
                refused(answer, took_s)
        assert deployment.http("GET", "/healthz").status_code == 200
        assert deployment.http("GET", "/readyz").status_code == 503
        ticking.counts_on()
    finally:
        deployment.kill("valkey", signal.SIGCONT)
    ticking.works()
    deployment.filled(POOL, 1)


def test_a_killed_store_comes_back_with_all_it_knew(deployment: Live, ticking: Ticking) -> None:
    with deployment.api() as api:
        before = {sandbox.id for sandbox in api.sandboxes.list()}
        assert deployment.kill("valkey")
        ticking.works()
        ticking.counts_on()
        deployment.filled(POOL, 1)
        assert {sandbox.id for sandbox in api.sandboxes.list()} == before
        assert api.attach(POOL).start == "warm"


def test_an_emptied_store_is_rebuilt_from_what_runs(deployment: Live, ticking: Ticking, source: Source) -> None:
    key = deployment.api_key
    deployment.redis().flushall()
    ticking.works()
    held_sandbox_is_adopted(deployment, ticking)
    declare(deployment, source)
    with deployment.api() as api:
        assert api.attach(POOL).start == "warm"
        assert api.whoami().role == "ops" and deployment.api_key == key
        api.sessions.end(ticking.session)
    until("the adopted sandbox is gone", lambda: ticking.machine not in deployment.traces(), within_s=30)


def test_a_deployment_that_starts_on_an_empty_store_finds_its_sessions(
    deployment: Live, ticking: Ticking, source: Source
) -> None:
    key = deployment.api_key
    deployment.kill()
    shutil.rmtree(deployment.folder / "valkey")
    deployment.up()
    assert deployment.api_key == key
    ticking.works()
    held_sandbox_is_adopted(deployment, ticking)


def held_sandbox_is_adopted(deployment: Live, ticking: Ticking) -> None:
    """Sessions are back with their labels and a lease; what nobody holds and no version vouches for is gone."""
    until("only what is held is left", lambda: deployment.recorded() == {ticking.machine}, within_s=60)
    until("the host agrees", lambda: set(deployment.traces()) == {ticking.machine}, within_s=60)
    with deployment.api() as api:
        (session,) = api.sessions.list(metadata={"job": "ticking"})
        assert (session.id, session.state, session.sandbox) == (ticking.session, "attached", ticking.machine)
        assert session.expires_at is not None and session.expires_at > time.time()
        assert api.sandboxes.get(ticking.machine).session == ticking.session
    ticking.counts_on()
