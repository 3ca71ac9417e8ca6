"""``warmpool run``, ``shell``, ``cp`` and ``session`` against the contract."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.cli.program import begin, invoke, invoke_json, process
from tests.sdk.contract import Served


def states(served: Served) -> list[str]:
    return [session["state"] for session in served.contract.sessions.values()]


def test_run_passes_output_and_exit_code_through_and_ends_the_session(served: Served) -> None:
    ran = process("run", "demo", "--", "echo out; echo err >&2; exit 7")
    assert (ran.returncode, ran.stdout) == (7, "out\n")
    assert "err\n" in ran.stderr
    assert "warm start in 1.6 ms (ready_in_pool)" in ran.stderr
    assert states(served) == ["ended"]


def test_several_words_are_run_as_they_are(served: Served) -> None:
    assert invoke("run", "demo", "--", "echo", "$HOME", "a  b").stdout == "$HOME a  b\n"


def test_quiet_says_nothing_of_its_own(served: Served) -> None:
    ran = invoke("run", "-q", "demo", "--", "echo hi")
    assert (ran.stdout, ran.stderr) == ("hi\n", "")


def test_run_sends_environment_labels_lease_and_folder(served: Served) -> None:
    ran = invoke("run", "demo", "-e", "A=b=c", "-l", "k=v", "--ttl", "60", "--cwd", "/tmp", "--", "pwd")
    assert ran.stdout == "/tmp\n"
    body = served.contract.bodies[0]
    assert (body["env"], body["labels"], body["ttl_s"]) == ({"A": "b=c"}, {"k": "v"}, 60)


def test_run_with_a_template_needs_no_pool(served: Served) -> None:
    invoke("run", "-t", "demo", "--ref", "main", "--memory", "512Mi", "--cpus", "2", "--", "true")
    body = served.contract.bodies[0]
    assert (body["template"], body["ref"]) == ("demo", "main")
    assert body["resources"] == {"memory_bytes": 512 * 1024**2, "cpu_cores": 2.0}


def test_keep_leaves_the_session_attached_and_says_how_to_end_it(served: Served) -> None:
    ran = invoke("run", "demo", "--keep", "--", "true")
    assert states(served) == ["attached"]
    assert "warmpool session rm se-0" in ran.stderr


def test_a_command_over_its_time_is_124(served: Served) -> None:
    ran = invoke("run", "demo", "--timeout", "0.5", "--", "echo begun; sleep 60")
    assert (ran.exit_code, ran.stdout) == (124, "begun\n")
    assert "timeout" in ran.stderr


def test_json_is_one_document_with_all_there_is_to_know(served: Served) -> None:
    ran = invoke("run", "demo", "--json", "--", "echo out; echo err >&2; exit 3")
    assert ran.exit_code == 3
    told = json.loads(ran.stdout)
    assert (told["stdout"], told["stderr"], told["exit_code"], told["start"]) == ("out\n", "err\n", 3, "warm")
    assert told["timings_ms"]["total"] == 1.6


def test_standard_input_is_passed_on_with_its_end(served: Served) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    ran = process("run", "demo", "-i", "-q", "--", "cat", stdin=text)
    assert (ran.returncode, ran.stdout) == (0, text)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_cancels_the_command_and_ends_the_session(served: Served, number: int, code: int) -> None:
    running = begin("run", "demo", "--", "echo begun; sleep 60")
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    running.send_signal(number)
    _, stderr = running.communicate(timeout=30)
    assert running.returncode == code, stderr
    assert "Traceback" not in stderr
    assert states(served) == ["ended"]
    (command,) = served.contract.commands.values()
    assert command.exited["reason"] == "cancelled" or command._stopped == "cancelled"


def test_an_interrupt_while_waiting_leaves_no_session(served: Served) -> None:
    served.contract.slow_s = 60
    running = begin("run", "slow", "--", "true")
    _until(lambda: served.calls("GET", "/v1/sessions/se-0") > 0)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "number 2 in the queue" in stderr
    assert states(served) == ["ended"]


def test_a_reader_that_goes_away_ends_command_and_session_without_noise(served: Served) -> None:
    running = begin("run", "-q", "demo", "--", "while :; do echo yes; sleep 0.01; done")
    assert running.stdout is not None and running.stdout.readline() == "yes\n"
    running.stdout.close()
    assert running.stderr is not None
    stderr = running.stderr.read()
    assert (running.wait(30), stderr) == (141, "")
    assert states(served) == ["ended"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "nope", "--", "true"), 3, "See `warmpool pool ls`."),
        (("run", "full", "--wait", "1", "--", "true"), 5, "may succeed in 30 s"),
        (("run", "quota", "--", "true"), 5, "As many sessions"),
        (("run", "broken", "--", "true"), 1, "warmpool build logs"),
        (("run", "demo", "--api-key", "wp_wrong", "--", "true"), 4, "warmpool key create"),
        (("run", "demo"), 2, "after --"),
        (("run", "demo", "-e", "A", "--", "true"), 2, "KEY=VALUE"),
        (("run", "-t", "x", "--memory", "lots", "--", "true"), 2, "such as 512Mi"),
        (("run", "demo", "--ref", "main", "--", "true"), 2, "template"),
        (("session", "show", "se-9"), 3, "no session"),
        (("--url", "http://127.0.0.1:1", "session", "keepalive", "se-9"), 5, "warmpool up"),
        (("--url", "nonsense", "pool", "ls"), 2, "not a URL"),
        (("pool", "list"), 2, "No such command"),
    ],
)
def test_an_error_says_what_to_do_and_has_its_exit_code(
    served: Served, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = invoke(*arguments)
    assert (ran.exit_code, said in ran.stderr, ran.stdout) == (code, True, ""), ran.output
    assert "Traceback" not in ran.output
    assert "attached" not in states(served)


def test_an_error_with_json_is_a_document_too(served: Served) -> None:
    ran = invoke("--json", "run", "nope", "--", "true")
    assert ran.exit_code == 3
    assert json.loads(ran.stdout)["error"]["code"] == "pool_not_found"
    assert "no pool" in ran.stderr


def test_debug_shows_the_traceback(served: Served) -> None:
    ran = process("run", "--debug", "nope", "--", "true")
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr and "NotFoundException" in ran.stderr


# -- shell


def test_the_shell_keeps_its_folder_and_the_last_exit_code(served: Served, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    lines = f"cd '{tmp_path}/a b'\npwd\nfalse\npwd; exit 5\npwd\n(exit 3)\n"
    ran = process("shell", "demo", stdin=lines)
    assert ran.stdout == f"{tmp_path}/a b\n" * 3
    assert ran.returncode == 3
    assert states(served) == ["ended"]
    assert "\x1e" not in ran.stderr + ran.stdout


def test_the_shell_shows_errors_of_lines_and_goes_on(served: Served) -> None:
    ran = process("shell", "demo", stdin="echo oops >&2\n\nif\necho next\ncd /nope\npwd >/dev/null\nexit\necho no\n")
    assert "oops\n" in ran.stderr
    assert ran.stdout == "next\n"


def test_the_shell_on_a_session_leaves_it_attached(served: Served) -> None:
    session = invoke("session", "attach", "demo").stdout.strip()
    assert process("shell", session, stdin="echo hi\n").stdout == "hi\n"
    assert states(served) == ["attached"]


def test_the_shells_sieve_passes_everything_but_the_mark_however_it_is_cut() -> None:
    from controlplane.cli.shell import _Sieve

    mark, text = "\x1eabc:", "err\x1e\x1eab no mark \x1eabd\n" + "\x1eabc:/home/x"
    for piece in range(1, len(text) + 1):
        said: list[str] = []
        sieve = _Sieve(mark, said.append)
        for at in range(0, len(text), piece):
            sieve.write(text[at : at + piece])
        assert sieve.end() == "/home/x"
        assert "".join(said) == "err\x1e\x1eab no mark \x1eabd\n"


# -- cp


def test_files_are_copied_both_ways_as_they_are(served: Served, tmp_path: Path) -> None:
    session = invoke("session", "attach", "demo").stdout.strip()
    data = bytes(range(256)) * 2000
    (tmp_path / "in").write_bytes(data)
    assert invoke("cp", str(tmp_path / "in"), f"{session}:f").exit_code == 0
    assert invoke("cp", f"{session}:f", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out").read_bytes() == data
    (tmp_path / "folder").mkdir()
    assert invoke_json("cp", f"{session}:f", str(tmp_path / "folder"))["bytes"] == len(data)
    assert (tmp_path / "folder" / "f").read_bytes() == data
    assert process("cp", "-", f"{session}:g", stdin="from a pipe").returncode == 0
    assert process("cp", f"{session}:g", "-").stdout == "from a pipe"


def test_a_copy_that_fails_leaves_the_old_file_and_no_part(served: Served, tmp_path: Path) -> None:
    session = invoke("session", "attach", "demo").stdout.strip()
    served.contract.files["big"] = b"x" * 100_000
    target = tmp_path / "t"
    target.write_text("old")
    served.faults.plan("GET", "/files", cut_after=50_000)
    assert invoke("cp", f"{session}:big", str(target)).exit_code == 1
    assert invoke("cp", f"{session}:nope", str(target)).exit_code == 3
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["t"]
    assert target.read_text() == "old"


def test_a_copy_between_two_local_paths_is_a_usage_error(served: Served) -> None:
    assert invoke("cp", "./a:b", "c").exit_code == 2


# -- session


def test_sessions_are_attached_listed_extended_and_ended(served: Served) -> None:
    session = invoke("session", "attach", "demo", "-l", "user=ann").stdout.strip()
    assert session in invoke("session", "ls").stdout
    assert [s["id"] for s in invoke_json("session", "ls", "-l", "user=ann")["sessions"]] == [session]
    assert invoke_json("session", "ls", "-l", "user=bob")["sessions"] == []
    assert invoke_json("session", "keepalive", session, "--ttl", "99")["ttl_s"] == 99
    assert "ready_in_pool" in invoke("session", "show", session).stdout
    assert invoke("session", "exec", session, "--", "exit 4").exit_code == 4
    command = invoke_json("session", "ps", session)["commands"][0]["id"]
    assert invoke("logs", session, command).exit_code == 0
    for _ in "ab":
        assert invoke("session", "rm", session).exit_code == 0
    assert invoke_json("session", "ls")["sessions"] == []
    assert len(invoke_json("session", "ls", "--all")["sessions"]) == 1


def test_logs_show_what_there_is_or_follow_to_the_end(served: Served) -> None:
    session = invoke("session", "attach", "demo").stdout.strip()
    running = begin("session", "exec", session, "--", "echo one; echo two >&2; sleep 1; echo three; exit 6")
    _until(lambda: any(len(c.history) >= 3 for c in served.contract.commands.values()))
    command = invoke_json("session", "ps", session)["commands"][0]["id"]
    now = invoke("logs", session, command)
    assert (now.stdout, "two\n" in now.stderr) == ("one\n", True)
    followed = invoke("logs", "-f", session, command)
    assert (followed.exit_code, followed.stdout) == (6, "one\nthree\n")
    events = [json.loads(line) for line in invoke("logs", "-f", session, command, "--json").stdout.splitlines()]
    assert events[-1]["kind"] == "closed"
    assert running.wait(30) == 6
    running.communicate()


def test_labels_can_not_move_the_cursor(served: Served) -> None:
    invoke("session", "attach", "demo", "-l", "a=\x1b[2J[red]x")
    shown = invoke("session", "ls").stdout
    assert "\x1b" not in shown
    assert "[red]x" in shown


def _until(condition: object, within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.02)
