"""Attaching, commands and files, over a real socket."""

from __future__ import annotations

import io
import threading
import time

import pytest

from tests.sdk.contract import Served
from warmpool import (
    AuthenticationException,
    CapacityException,
    CommandExitException,
    CommandTimeoutException,
    ConflictException,
    InvalidArgumentException,
    NotFoundException,
    QuotaException,
    Sandbox,
    SandboxException,
    Session,
    TemplateException,
    TimeoutException,
)

# -- attach


def test_a_session_is_attached_used_and_ended_by_its_with_block(served: Served) -> None:
    with Sandbox.create("demo", timeout=600, envs={"A": "1"}, metadata={"run": "7"}) as sb:
        assert (sb.start, sb.start_reason) == ("warm", "ready_in_pool")
        assert sb.timings_ms["total"] == 1.6
        assert sb.is_running()
    assert served.contract.sessions[sb.id]["state"] == "ended"
    assert served.contract.bodies[0] == {
        "pool": "demo",
        "ttl_s": 600,
        "wait_s": 60.0,
        "labels": {"run": "7"},
        "env": {"A": "1"},
    }


def test_a_template_is_attached_to_with_a_ref_and_resources_of_its_own(served: Served) -> None:
    with Sandbox.create(template="demo", ref="main", resources={"memory_bytes": "2Gi"}, wait=1):
        assert served.contract.bodies[0] == {
            "template": "demo",
            "ref": "main",
            "resources": {"memory_bytes": "2Gi"},
            "wait_s": 1,
        }


def test_an_error_in_the_block_ends_the_session_and_stays_the_error_seen(served: Served) -> None:
    with pytest.raises(ZeroDivisionError), Sandbox.create("demo") as sb:
        served.faults.plan("GET", f"/v1/sessions/{sb.id}", times=50, status=500)
        raise ZeroDivisionError
    assert served.calls("GET", sb.id) == 1


def test_a_cold_attach_waits_and_reports_its_place_in_the_queue(served: Served) -> None:
    served.contract.slow_s = 1.6
    seen: list[Session] = []
    with Sandbox.create("slow", wait=30, on_progress=seen.append) as sb:
        assert (sb.start, sb.start_reason) == ("cold", "pool_empty")
    assert seen
    assert seen[0].queue is not None and seen[0].queue.position == 1
    assert len(served.contract.sessions) == 1, "asking again made no second session"


def test_a_sandbox_that_does_not_come_in_time_ends_the_session_and_says_so(served: Served) -> None:
    served.contract.slow_s = 60
    with pytest.raises(CapacityException, match=r"within 0\.3 s") as caught:
        Sandbox.create("slow", wait=0.3)
    assert caught.value.code == "wait_timeout"
    assert [s["state"] for s in served.contract.sessions.values()] == ["ended"]


def test_no_wait_takes_a_ready_sandbox_or_none(served: Served) -> None:
    Sandbox.create("demo", wait=0).close()
    with pytest.raises(CapacityException):
        Sandbox.create("slow", wait=0)


def test_an_interrupt_while_waiting_ends_the_session(served: Served) -> None:
    served.contract.slow_s = 60

    def interrupt(session: Session) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sandbox.create("slow", wait=30, on_progress=interrupt)
    assert [s["state"] for s in served.contract.sessions.values()] == ["ended"]


@pytest.mark.parametrize(
    ("pool", "kind", "code"),
    [
        ("full", CapacityException, "no_capacity"),
        ("quota", QuotaException, "over_quota"),
        ("nope", NotFoundException, "pool_not_found"),
        ("broken", TemplateException, "template_failed"),
    ],
)
def test_an_attach_that_fails_raises_its_own_kind(
    served: Served, pool: str, kind: type[SandboxException], code: str
) -> None:
    with pytest.raises(kind) as caught:
        Sandbox.create(pool, wait=1)
    assert caught.value.code == code


def test_a_capacity_error_tells_when_to_try_again(served: Served) -> None:
    with pytest.raises(CapacityException) as caught:
        Sandbox.create("full", wait=1)
    assert caught.value.retry_after_s == 30
    assert served.calls("POST", "/v1/sessions") == 1, "it is not tried again before that time"


def test_one_idempotency_key_gives_one_session(served: Served) -> None:
    first = Sandbox.create("demo", idempotency_key="job-7")
    second = Sandbox.create("demo", idempotency_key="job-7")
    assert first.id == second.id
    first.close()
    second.close()


@pytest.mark.parametrize("key", ["wp_wrong", None])
def test_a_wrong_or_missing_key_is_an_authentication_error_with_the_way_out(
    served: Served, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.delenv("WARMPOOL_API_KEY")
    with pytest.raises(AuthenticationException, match="warmpool key create"):
        Sandbox.create("demo", api_key=key)


def test_contradictory_wishes_are_refused_before_anything_is_sent(served: Served) -> None:
    for call in (
        lambda: Sandbox.create(),
        lambda: Sandbox.create("demo", template="demo"),
        lambda: Sandbox.create("demo", ref="main"),
        lambda: Sandbox.create("demo", wait=-1),
        lambda: Sandbox.create("demo", wait=float("nan")),
    ):
        with pytest.raises(InvalidArgumentException):
            call()
    with pytest.raises(TypeError):
        Sandbox.create("demo", tiemout=1)  # type: ignore[call-arg]
    assert served.faults.seen == []


def test_sessions_are_found_by_their_labels_connected_to_extended_and_killed(served: Served) -> None:
    made = Sandbox.create("demo", metadata={"user": "ann"})
    Sandbox.create("demo", metadata={"user": "bob"}).close()
    assert [s.id for s in Sandbox.list(metadata={"user": "ann"})] == [made.id]
    with_id = Sandbox.connect(made.id)
    assert with_id.set_timeout(99).ttl_s == 99
    assert with_id.get_info().expires_at is not None
    assert Sandbox.kill(made.id) is True
    assert Sandbox.kill(made.id) is False
    assert with_id.kill() is False
    assert Sandbox.kill("se-unknown") is False
    assert not with_id.is_running()
    with pytest.raises(ConflictException, match="has ended"):
        Sandbox.connect(made.id)
    with pytest.raises(NotFoundException):
        Sandbox.connect("se-unknown")


# -- commands


def test_output_comes_as_it_is_written_and_whole_in_the_result(sandbox: Sandbox) -> None:
    said: list[tuple[str, str]] = []
    result = sandbox.commands.run(
        "echo one; echo two >&2",
        on_stdout=lambda text: said.append(("out", text)),
        on_stderr=lambda text: said.append(("err", text)),
    )
    assert (result.stdout, result.stderr, result.exit_code, result.reason) == ("one\n", "two\n", 0, "exit")
    assert sorted(said) == [("err", "two\n"), ("out", "one\n")]


def test_a_list_of_words_is_run_as_it_is(sandbox: Sandbox) -> None:
    assert sandbox.commands.run(["echo", "$HOME", "a  b"]).stdout == "$HOME a  b\n"


def test_environment_folder_and_input_reach_the_command(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("echo $A; pwd; cat", envs={"A": "1"}, cwd="/tmp", stdin="from here")
    assert result.stdout == "1\n/tmp\nfrom here"


def test_a_failing_command_raises_with_its_result_unless_unchecked(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException, match="no luck") as caught:
        sandbox.commands.run("echo out; echo no luck >&2; exit 3")
    assert (caught.value.exit_code, caught.value.stdout, caught.value.result.stderr) == (3, "out\n", "no luck\n")
    assert sandbox.commands.run("exit 3", check=False).exit_code == 3


def test_a_command_over_its_time_is_124_and_keeps_what_it_wrote(sandbox: Sandbox) -> None:
    with pytest.raises(CommandTimeoutException) as caught:
        sandbox.commands.run("echo begun; sleep 60", timeout=0.5)
    assert isinstance(caught.value, TimeoutException)
    assert (caught.value.exit_code, caught.value.stdout) == (124, "begun\n")


def test_a_command_ended_by_a_signal_has_128_and_the_signal_as_its_code(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("kill -9 $$", check=False).exit_code == 137


def test_a_background_child_that_holds_the_output_does_not_hold_the_call(sandbox: Sandbox) -> None:
    began = time.monotonic()
    result = sandbox.commands.run("sleep 30 & echo hi")
    assert result.stdout == "hi\n"
    assert result.survivors
    assert time.monotonic() - began < 10


def test_a_callback_that_fails_cancels_the_command(sandbox: Sandbox, served: Served) -> None:
    def fail(text: str) -> None:
        raise ZeroDivisionError(text)

    with pytest.raises(ZeroDivisionError, match="go"):
        sandbox.commands.run("echo go; sleep 60", on_stdout=fail)
    (command,) = served.contract.commands.values()
    _until(lambda: command.closed)
    assert command.exited["reason"] == "cancelled"


def test_a_background_command_is_written_to_read_waited_for(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read x; echo got $x; cat", background=True, stdin=True)
    assert handle.pid
    assert handle.exit_code is None
    handle.send_stdin("one\n")
    handle.send_stdin(b"two", eof=True)
    result = handle.wait()
    assert result.stdout == "got one\ntwo"
    assert handle.exit_code == 0


def test_events_can_be_iterated_left_and_taken_up_again(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo one; read x; echo two", background=True, stdin=True)
    first = []
    for event in handle:
        first.append(event)
        if event.kind == "stdout":
            handle.disconnect()
    assert first[-1].text == "one\n"
    handle.send_stdin("\n")
    again = sandbox.commands.connect(handle.id)
    assert [event.kind for event in again][-2:] == ["exited", "closed"]
    assert again.stdout == "one\ntwo\n"


def test_commands_are_listed_and_killed_by_id(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 60", background=True)
    assert [c.id for c in sandbox.commands.list()] == [handle.id]
    assert sandbox.commands.kill(handle.id) is True
    assert handle.wait(check=False).exit_code == 137
    assert handle.kill() is False


def test_a_command_that_is_nothing_is_refused(sandbox: Sandbox, served: Served) -> None:
    for nothing in ("", [], [""], [1]):
        with pytest.raises(InvalidArgumentException):
            sandbox.commands.run(nothing)  # type: ignore[arg-type]
    assert served.contract.started == 0


# -- files


def test_files_are_written_read_listed_and_removed(sandbox: Sandbox) -> None:
    info = sandbox.files.write("a.txt", "häl\r\nlo")
    assert info.size == len("häl\r\nlo".encode())
    sandbox.files.write_files([{"path": "b", "data": b"\xff"}, {"path": "c", "data": io.BytesIO(b"c" * 200_000)}])
    assert sandbox.files.read("a.txt") == "häl\r\nlo"
    assert sandbox.files.read("b", format="bytes") == b"\xff"
    assert sum(len(piece) for piece in sandbox.files.read("c", format="stream")) == 200_000
    assert [entry.path.rsplit("/", 1)[1] for entry in sandbox.files.list()] == ["a.txt", "b", "c"]
    sandbox.files.remove("b")
    sandbox.files.remove("b")
    assert [sandbox.files.exists(path) for path in ("a.txt", "b", "folder")] == [True, False, True]


def test_a_generator_of_bytes_may_be_written(sandbox: Sandbox) -> None:
    sandbox.files.write("g", (b"x" * 10 for _ in range(10)))
    assert sandbox.files.read("g") == "x" * 100


def test_a_file_that_is_not_text_is_an_error_that_names_the_way_to_read_it(sandbox: Sandbox) -> None:
    sandbox.files.write("b", b"ok\xff")
    with pytest.raises(InvalidArgumentException, match=r'format="bytes"'):
        sandbox.files.read("b")


def test_a_missing_file_is_not_found_in_every_format(sandbox: Sandbox) -> None:
    with pytest.raises(NotFoundException):
        sandbox.files.read("nope")
    with pytest.raises(NotFoundException):
        list(sandbox.files.read("nope", format="stream"))


def test_a_listing_that_is_not_whole_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException, match="more entries"):
        sandbox.files.list("huge")


def test_a_folder_is_made_once(sandbox: Sandbox, tmp_path: object) -> None:
    path = f"{tmp_path}/x/y"
    assert sandbox.files.make_dir(path) is True
    assert sandbox.files.make_dir(path) is False
    with pytest.raises(InvalidArgumentException):
        sandbox.files.make_dir("/proc/nope/x")


def test_one_sandbox_serves_several_threads(sandbox: Sandbox) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(sandbox.commands.run(f"echo {n}").stdout)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [f"{n}\n" for n in range(8)]


def _until(condition: object, within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.01)
