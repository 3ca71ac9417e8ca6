"""The main job: a repository becomes a template, the template a pool, and a session attaches to it warm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Source
from tests.e2e.live import Live, connected, machine_of, until
from warmpool import CommandExitException, ConflictException, Sandbox, Warmpool

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
POOL = "main-job"
SETUP = ["git log --format=%H > made-by-setup", "python3 -m venv --without-pip .venv"]


@pytest.fixture(scope="module")
def pool(shared: Live, source: Source) -> Iterator[Live]:
    shared.declare(
        POOL, min_ready=2, max_total=4, repository=source.repository, setup=SETUP, env={"FROM_TEMPLATE": "yes"}
    )
    shared.filled(POOL, 2)
    yield shared
    shared.remove(POOL)


@pytest.fixture
def api(pool: Live) -> Iterator[Warmpool]:
    with pool.api() as made:
        yield made


@pytest.fixture
def sandbox(pool: Live, api: Warmpool) -> Iterator[Sandbox]:
    pool.filled(POOL, 2)
    with api.attach(POOL, envs={"FROM_SESSION": "too"}, metadata={"job": "main"}) as made:
        yield made


def test_a_session_attaches_warm_to_the_cloned_and_set_up_repository(sandbox: Sandbox, source: Source) -> None:
    assert (sandbox.start, sandbox.start_reason) == ("warm", "ready_in_pool")
    assert {"auth", "claim", "bind", "bound", "total"} <= set(sandbox.timings_ms)
    done = sandbox.commands.run("git rev-parse HEAD; cat made-by-setup README; .venv/bin/python -c 'print(6*7)'")
    assert done.stdout.splitlines() == [source.commit, source.commit, "hello", "42"]


def test_what_a_session_sees_is_an_ordinary_user_in_a_closed_machine(pool: Live, sandbox: Sandbox) -> None:
    seen = sandbox.commands.run("id -u; id -un; pwd; hostname; ls /sys/class/net; cat /proc/self/cgroup; umask").stdout
    lines = seen.splitlines()
    assert lines[:3] == ["1000", "agent", "/workspace"]
    assert lines[3] == machine_of(sandbox)
    assert lines[4] == "lo"
    assert "warmpool-e2e" not in seen
    with pytest.raises(CommandExitException):
        sandbox.commands.run("timeout 5 python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 3)'")


def test_the_environment_of_a_command_holds_what_was_declared_and_no_secret(pool: Live, sandbox: Sandbox) -> None:
    text = sandbox.commands.run("env", envs={"FROM_CALL": "as well"}).stdout
    env = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert (env["FROM_TEMPLATE"], env["FROM_SESSION"], env["FROM_CALL"]) == ("yes", "too", "as well")
    assert (env["HOME"], env["USER"]) == ("/home/agent", "agent")
    key = pool.api_key
    secret = (pool.folder / "secret").read_text().strip()
    held = sandbox.commands.run(
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat /etc/warmpool/* /run/warmpool/*",
        check=False,
    ).stdout
    assert key not in held and secret not in held
    assert "WARMPOOL_" not in held and "key_hex" not in held


def test_labels_find_the_session_and_came_with_the_binding(api: Warmpool, sandbox: Sandbox) -> None:
    found = api.sessions.list(metadata={"job": "main"}, state="attached")
    assert [session.id for session in found] == [sandbox.id]
    assert api.sandboxes.get(machine_of(sandbox)).session == sandbox.id


def test_files_written_are_there_for_commands_and_the_other_way_round(sandbox: Sandbox) -> None:
    sandbox.files.write("notes/one.txt", "first\n")
    assert sandbox.commands.run("cat notes/one.txt; stat -c '%U %a' notes/one.txt").stdout == "first\nagent 644\n"
    sandbox.commands.run("head -c 3000000 /dev/urandom > big; sha256sum big > sum")
    data = sandbox.files.read("big", "bytes")
    assert len(data) == 3_000_000
    sandbox.files.write("copy", data)
    assert sandbox.commands.run("cmp big copy && echo same").stdout == "same\n"
    assert {"notes", "big", "copy", "README"} <= {entry.path.rpartition("/")[2] for entry in sandbox.files.list(".")}


def test_a_background_command_outlives_the_client_that_started_it(pool: Live, sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("for i in $(seq 1 600); do echo $i; sleep 0.1; done", background=True)
    before = handle.status()
    sandbox.close()
    again = connected(pool, sandbox.id)
    now = again.commands.connect(handle.id).status()
    assert (now.state, now.pid) == ("running", before.pid)

    def goes_on() -> bool:
        return again.commands.connect(handle.id).status().stdout_bytes > now.stdout_bytes

    until("the command writes on", goes_on, within_s=20)
    again.kill()
    with pytest.raises(ConflictException) as ended:
        again.commands.run("true")
    assert ended.value.code == "session_ended"


def test_the_end_of_a_session_ends_its_machine_and_all_in_it_and_the_pool_is_refilled(
    pool: Live, api: Warmpool, sandbox: Sandbox
) -> None:
    sandbox.commands.run("setsid sleep 1000 & trap '' TERM; sleep 1000", background=True)
    machine = machine_of(sandbox)
    assert sandbox.kill() is True
    until("nothing of the sandbox is left", lambda: machine not in pool.traces(), within_s=30)
    assert machine not in pool.recorded()
    ended = api.sessions.get(sandbox.id)
    assert (ended.state, ended.end_reason) == ("ended", "deleted")
    pool.filled(POOL, 2)


def test_events_tell_the_life_of_a_session_and_its_sandbox(pool: Live, api: Warmpool, sandbox: Sandbox) -> None:
    machine = machine_of(sandbox)
    sandbox.kill()
    until("the sandbox is gone", lambda: machine not in pool.recorded(), within_s=30)
    kinds: dict[str, list[str]] = {}
    page = api.events.list(after="0")
    while page.events:
        for event in page.events:
            if event.kind != "sandbox.step":
                kinds.setdefault(event.subject, []).append(event.kind)
        page = api.events.list(after=page.next)
    assert kinds[sandbox.id] == ["session.binding", "session.attached", "session.ended"]
    assert kinds[machine] == [f"sandbox.{state}" for state in ("building", "ready", "claimed", "draining", "gone")]


def test_beyond_the_maximum_a_session_waits_in_the_queue_and_gets_the_next_sandbox(pool: Live, api: Warmpool) -> None:
    held = [api.attach(POOL) for _ in range(4)]
    assert len({machine_of(sandbox) for sandbox in held}) == 4
    answer = pool.http("POST", "/v1/sessions", {"pool": POOL, "wait_s": 0})
    assert answer.status_code == 202
    waiting = answer.json()
    assert (waiting["state"], waiting["queue"]["position"]) == ("waiting", 0)
    assert answer.headers["Location"].endswith(waiting["id"])
    held[0].kill()
    served = api.sessions.get(waiting["id"], wait=30)
    assert (served.state, served.start, served.start_reason) == ("attached", "cold", "pool_empty")
    for session in [waiting["id"], *(sandbox.id for sandbox in held[1:])]:
        api.sessions.end(session)
