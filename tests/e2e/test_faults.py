"""What goes wrong is told with a code and what to do about it, its log stays readable, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Source
from tests.e2e.live import SMALL, Live, until
from warmpool.types import Build

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


@pytest.fixture
def failing(shared: Live) -> Iterator[Live]:
    """The shared deployment, which holds nothing of the failed template afterwards."""
    yield shared
    shared.remove("failing")
    with shared.api() as api:
        assert [build for build in api.builds.list() if build.template == "failing"] == []
    until("nothing is left of the build", lambda: not extra(shared), within_s=30)


def extra(deployment: Live) -> dict[str, set[str]]:
    recorded = deployment.recorded()
    return {sandbox: what for sandbox, what in deployment.traces().items() if sandbox not in recorded}


def build_of(deployment: Live, **template: Any) -> Build:
    """The first ended build of a new template."""
    deployment.declare("failing", min_ready=1, max_total=1, **template)

    def ended() -> Build | None:
        with deployment.api() as api:
            builds = [b for b in api.builds.list(template="failing") if b.state not in ("queued", "running")]
        return min(builds, key=lambda build: build.created_at) if builds else None

    found = until("a build ends", ended, within_s=90)
    assert found is not None
    return found


def log_of(deployment: Live, build: Build, step: str) -> str:
    with deployment.api() as api:
        return "".join(chunk.text for chunk in api.builds.logs(build.id, step=step))


def test_a_repository_that_is_not_there(failing: Live, source: Source) -> None:
    build = build_of(failing, repository={"url": source.url + "-missing", "ref": "main"})
    assert (build.state, build.error_code) == ("failed", "repository_failed")
    assert "demo-missing" in log_of(failing, build, "resolve")


def test_a_repository_server_that_does_not_answer(failing: Live) -> None:
    build = build_of(failing, repository={"url": "http://127.0.0.1:9/demo", "ref": "main"})
    assert (build.state, build.error_code) == ("failed", "repository_failed")
    assert build.error and "127.0.0.1" in build.error


def test_a_ref_that_does_not_exist(failing: Live, source: Source) -> None:
    build = build_of(failing, repository={"url": source.url, "ref": "no-such-branch"})
    assert (build.state, build.error_code) == ("failed", "ref_not_found")
    assert build.error and "no-such-branch" in build.error and "full commit id" in build.error


def test_a_setup_command_that_fails_ends_waiting_sessions_with_its_last_lines(failing: Live) -> None:
    build = build_of(failing, setup=["echo first", "echo some output; echo the reason >&2; exit 7"])
    assert (build.state, build.error_code) == ("failed", "setup_failed")
    assert build.error and "exit code 7" in build.error and "the reason" in build.error
    steps = {step.name: step for step in build.steps}
    assert (steps["setup-1"].state, steps["setup-2"].state, steps["seal"].state) == ("succeeded", "failed", "pending")
    assert steps["setup-2"].exit_code == 7
    assert "some output\nthe reason\n" in log_of(failing, build, "setup-2")
    answer = failing.http("POST", "/v1/sessions", {"pool": "failing", "wait_s": 60})
    assert (answer.status_code, answer.json()["code"]) == (400, "template_failed")
    assert "the reason" in answer.json()["detail"]
    assert "build logs" in answer.json()["hint"]


def test_a_setup_command_that_hangs_is_ended_at_its_limit_with_all_its_children(failing: Live) -> None:
    hanging = {"run": "echo begun; trap '' TERM; (setsid sleep 500 &) ; sleep 500", "timeout_s": 1}
    build = build_of(failing, setup=[hanging])
    assert (build.state, build.error_code) == ("failed", "setup_timeout")
    assert build.error and "timeout_s" in build.error
    assert "begun" in log_of(failing, build, "setup-1")


def test_a_build_that_fills_its_disk(failing: Live) -> None:
    resources = {**SMALL, "disk_bytes": 64 << 20}
    build = build_of(failing, resources=resources, setup=["head -c 200M /dev/zero > big"])
    assert (build.state, build.error_code) == ("failed", "setup_failed")
    assert build.error and "No space left" in build.error


def test_a_build_that_runs_out_of_memory(failing: Live) -> None:
    resources = {**SMALL, "memory_bytes": 64 << 20}
    build = build_of(failing, resources=resources, setup=["python3 -c 'print(len(bytearray(200 << 20)))'"])
    assert (build.state, build.error_code) == ("failed", "setup_failed")
    assert build.error and "memory" in build.error


def test_a_template_deleted_while_it_is_built_leaves_nothing(failing: Live) -> None:
    failing.declare("failing", min_ready=1, max_total=1, setup=["echo begun; sleep 600"])

    def begun() -> str | None:
        with failing.api() as api:
            build = api.builds.list(template="failing")[0]
            return build.sandbox if "begun" in log_of(failing, build, "setup-1") else None

    machine = until("the build is in its setup", begun)
    assert machine in failing.traces()
    failing.remove("failing")
    until("its sandbox is gone", lambda: machine not in failing.traces(), within_s=30)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"pool": "no-such-pool"}, 404, "pool_not_found"),
        ({"template": "no-such-template"}, 404, "template_not_found"),
        ({"pool": "other-tenant/pool"}, 404, "pool_not_found"),
        ({"pool": "../../etc"}, 400, "invalid_name"),
        ({"pool": "Upper Case"}, 400, "invalid_name"),
        ({"pool": "nul\0byte"}, 400, "invalid_name"),
        ({"pool": "x" * 5000}, 400, "invalid_name"),
        ({"pool": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢"}, 400, "invalid_name"),
        ({"pool": "a:b{c}"}, 400, "invalid_name"),
        ({"pool": "no-such-pool", "ttl_s": 0}, 400, "invalid_ttl"),
        ({"pool": "no-such-pool", "ttl_s": -5}, 400, "invalid_ttl"),
        ({"pool": "no-such-pool", "ttl_s": "soon"}, 422, "invalid_request"),
        ({}, 400, None),
        ({"pool": "no-such-pool", "labels": {"big": "x" * 200_000}}, 413, "body_too_large"),
    ],
)
def test_a_request_that_cannot_be_served(shared: Live, body: dict[str, Any], status: int, code: str | None) -> None:
    answer = shared.http("POST", "/v1/sessions", body)
    problem = answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.status_code, problem["status"]) == (status, status), problem
    assert code is None or problem["code"] == code, problem
    assert problem["detail"]
    assert len(problem["detail"]) < 1000


@pytest.mark.parametrize("name", ["Odd", "a_b", "-a", "a.b", "a%2Fb", "x" * 64, "%00", "..%2f.."])
def test_an_odd_name_declares_nothing(shared: Live, name: str) -> None:
    for kind, body in (("templates", {"base": "debian12"}), ("pools", {"template": "x", "min_ready": 1})):
        answer = shared.http("PUT", f"/v1/{kind}/{name}", body)
        assert answer.status_code in (400, 404, 405), answer.text
        assert answer.json()["detail"]
    with shared.api() as api:
        assert not [t for t in api.templates.list() if t.name == name]


def test_an_unknown_base_is_told_with_those_there_are(failing: Live) -> None:
    build = build_of(failing, base="windows95")
    assert (build.state, build.error_code) == ("failed", "unknown_base")
    assert build.error and "debian12" in build.error


def test_a_wrong_key_and_none(shared: Live) -> None:
    for headers in ({"Authorization": "Bearer wp_nothing_nothing"}, {"Authorization": ""}):
        answer = shared.http("GET", "/v1/sessions", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
