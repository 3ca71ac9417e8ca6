"""Commands: the cases that broke others, each with the right result."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from agents.wire import EventPage, ExecEvent, ExecList, ExecStatus
from tests.sandboxd.daemon import Daemon, Result, children_of, decoded, eventually, problem, running


def alive_in_groups(daemon: Daemon) -> list[str]:
    return [
        pid
        for root in daemon.cgroup_roots.values()
        for file in Path(root).glob("cmd-*/cgroup.procs")
        for pid in file.read_text().split()
    ]


def resident_bytes(daemon: Daemon) -> int:
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_a_held_pipe_does_not_hold_the_exit(daemon: Daemon) -> None:
    started = time.monotonic()
    result = await daemon.run("sleep 30 & echo hi", until="exited")
    assert time.monotonic() - started < 5
    assert (result.stdout, result.status.code, result.status.reason) == ("hi\n", 0, "exit")
    assert (await daemon.status(result.status.id)).state == "exited"


async def test_survivors_are_listed_and_can_be_ended(grouped: Daemon) -> None:
    result = await grouped.run("sleep 300 & echo $!", until="exited")
    assert result.status.survivors == [int(result.stdout)]
    await grouped.call("POST", f"/v1/exec/{result.status.id}/signal", json={"signal": "KILL"})
    await grouped.until(result.status.id, "closed", after=result.status.last_seq)
    assert not Path(f"/proc/{int(result.stdout)}").exists()


async def test_a_timeout_ends_processes_of_other_sessions_too(grouped: Daemon) -> None:
    result = await grouped.run("setsid sleep 300 & sleep 60", timeout_s=1, grace_s=1)
    assert (result.status.reason, result.status.code) == ("timeout", 124)
    assert "timed out after 1 s" in (result.status.error or "")
    assert result.status.survivors == []
    assert alive_in_groups(grouped) == []


async def test_a_tree_that_ignores_term_and_forks_on_is_ended(grouped: Daemon) -> None:
    script = "trap '' TERM; for i in 1 2 3 4; do (trap '' TERM; while :; do setsid sleep .05; done) & done; wait"
    result = await grouped.run(script, timeout_s=0.5, grace_s=0.3)
    assert result.status.reason == "timeout"
    assert alive_in_groups(grouped) == []


async def test_a_heredoc_is_taken_literally(daemon: Daemon) -> None:
    result = await daemon.run("cat <<'EOF'\nit's $HOME\nEOF")
    assert (result.stdout, result.status.code) == ("it's $HOME\n", 0)


async def test_a_character_split_between_writes_arrives_whole(daemon: Daemon) -> None:
    result = await daemon.run(r"printf 'a\xe2'; sleep .2; printf '\x82\xac\n'")
    assert result.stdout == "a€\n"


async def test_output_without_a_final_newline_stays_so(daemon: Daemon) -> None:
    result = await daemon.run("printf hello")
    assert (result.stdout, result.status.code) == ("hello", 0)


async def test_a_flood_is_counted_whole_and_kept_in_part(daemon: Daemon) -> None:
    before = resident_bytes(daemon)
    status = await daemon.start("yes | head -c 50000000")
    await daemon.until(status.id, "closed")
    assert resident_bytes(daemon) - before < 32 * 1024 * 1024
    result = Result(await daemon.until(status.id, "closed"))
    final = await daemon.status(status.id)
    assert (result.status.code, final.stdout_bytes) == (0, 50_000_000)
    assert len(result.stdout) <= 1_048_576
    assert result.stdout.startswith("y\n") and result.stdout.endswith("y\n")
    (gap,) = [event for event in result.events if event.kind == "omitted"]
    assert (gap.size or 0) + len(result.stdout) == 50_000_000


async def test_a_command_that_reads_finds_the_end_of_input(daemon: Daemon) -> None:
    result = await daemon.run("cat; read x; echo rc=$?")
    assert result.stdout == "rc=1\n"


async def test_nothing_is_left_a_zombie(daemon: Daemon) -> None:
    await daemon.run("for i in $(seq 20); do (sleep .1 &); done; sleep .5")
    await eventually(lambda: all(state != "Z" for _, state in children_of(daemon.process.pid)))


async def test_output_before_a_timeout_is_kept(grouped: Daemon) -> None:
    script = "mkfifo p; (while :; do echo c; sleep 1; done) >p & cat p"
    result = await grouped.run(script, timeout_s=1.5, grace_s=1)
    assert result.status.reason == "timeout"
    assert result.stdout.startswith("c\n")
    assert alive_in_groups(grouped) == []


@pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("TERM", 143), ("USR1", 138)])
async def test_a_signal_is_told_by_name_and_code(daemon: Daemon, name: str, code: int) -> None:
    status = (await daemon.run(f"kill -{name} $$")).status
    assert (status.code, status.signal, status.reason) == (code, name, "signal")


async def test_running_out_of_memory_is_told_apart_from_being_killed(grouped: Daemon) -> None:
    script = "exec python3 -c 'bytearray(10**9)'"
    status = (await grouped.run(script, limits={"memory_bytes": 64 * 1024 * 1024})).status
    assert (status.code, status.reason) == (137, "oom")
    assert status.oom_kills == 1
    assert (await grouped.run("true")).status.code == 0


async def test_a_limit_of_processes_holds_for_one_command(grouped: Daemon) -> None:
    script = "for i in $(seq 20); do sleep .5 & done; wait"
    result = await grouped.run(script, limits={"pids": 5}, timeout_s=20, grace_s=0)
    assert "fork" in result.stderr


async def test_a_script_may_be_longer_than_one_argument_may(daemon: Daemon) -> None:
    result = await daemon.run("printf %s " + "x" * 200_000)
    assert (len(result.stdout), result.status.code) == (200_000, 0)


async def test_a_deleted_directory_is_no_place_to_run(daemon: Daemon) -> None:
    await daemon.run("mkdir d")
    assert (await daemon.run("pwd", cwd="d")).stdout == f"{daemon.workspace}/d\n"
    await daemon.run("rm -rf d")
    body = {"id": "gone", "script": "pwd", "cwd": "d"}
    assert problem(await daemon.call("POST", "/v1/exec", json=body)) == (400, "CWD_NOT_FOUND")
    assert (await daemon.run("pwd")).stdout == f"{daemon.workspace}\n"
    assert (await daemon.run("echo ok", id="gone")).stdout == "ok\n", "a refused start leaves its id free"


async def test_a_dropped_connection_ends_nothing_and_can_be_resumed(daemon: Daemon) -> None:
    status = await daemon.start("for i in 1 2 3 4 5; do echo $i; sleep .3; done")
    seen: list[ExecEvent] = []
    path = f"/v1/exec/{status.id}/stream"
    async with daemon.http.stream("GET", path, headers=daemon.headers()) as response:
        async for line in response.aiter_lines():
            seen.append(msgspec.json.decode(line, type=ExecEvent))
            if any(event.text == "2\n" for event in seen):
                break
    async with daemon.http.stream("GET", f"{path}?after={seen[-1].seq}", headers=daemon.headers()) as response:
        seen += [msgspec.json.decode(line, type=ExecEvent) async for line in response.aiter_lines()]
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert Result(seen).stdout == "1\n2\n3\n4\n5\n"
    assert (seen[-1].kind, Result(seen).status.code) == ("closed", 0)


async def test_twenty_commands_run_side_by_side(daemon: Daemon) -> None:
    started = time.monotonic()
    results = await asyncio.gather(*(daemon.run(f"echo {n}; sleep .2; echo {n}") for n in range(20)))
    assert [result.stdout for result in results] == [f"{n}\n{n}\n" for n in range(20)]
    assert time.monotonic() - started < 4, "one after the other they would take longer"


async def test_a_repeated_start_answers_the_first_one(daemon: Daemon) -> None:
    body = {"id": "once", "script": "echo x >> runs; sleep .2"}
    answers = await asyncio.gather(*(daemon.call("POST", "/v1/exec", json=body) for _ in range(10)))
    assert {decoded(answer, ExecStatus).pid for answer in answers} == {(await daemon.status("once")).pid}
    await daemon.until("once", "closed")
    assert (daemon.workspace / "runs").read_text() == "x\n"


async def test_a_broken_pipe_ends_its_writer_quietly(daemon: Daemon) -> None:
    result = await daemon.run("yes | head -1")
    assert (result.stdout, result.stderr) == ("y\n", "")


async def test_argv_is_run_as_given_and_a_missing_program_is_127(daemon: Daemon) -> None:
    assert (await daemon.run(argv=["printf", "%s|", "a b", "$HOME"])).stdout == "a b|$HOME|"
    result = await daemon.run(argv=["no-such-program"])
    assert (result.status.code, result.status.reason) == (127, "exit")
    assert "no-such-program" in (result.status.error or "")
    daemon.workspace.joinpath("plain").write_text("x")
    assert (await daemon.run(argv=["./plain"])).status.code == 126


async def test_stdin_can_be_given_at_once_or_piece_by_piece(daemon: Daemon) -> None:
    assert (await daemon.run("cat", stdin="x" * 300_000)).stdout == "x" * 300_000
    status = await daemon.start("while read line; do echo got $line; done; echo end", stdin_open=True)
    path = f"/v1/exec/{status.id}/stdin"
    assert (await daemon.call("POST", path, content=b"one\n")).status_code == 204
    await daemon.until(status.id, "stdout")
    assert (await daemon.call("POST", f"{path}?eof=1", content=b"two\n")).status_code == 204
    assert Result(await daemon.until(status.id, "closed")).stdout == "got one\ngot two\nend\n"
    assert problem(await daemon.call("POST", path, content=b"late")) == (409, "stdin_closed")


async def test_input_that_is_not_read_is_refused_instead_of_piling_up(daemon: Daemon) -> None:
    status = await daemon.start("sleep 60", stdin_open=True)
    path = f"/v1/exec/{status.id}/stdin"
    piece = b"x" * (3 * 1024 * 1024)
    assert (await daemon.call("POST", path, content=piece)).status_code == 204
    assert problem(await daemon.call("POST", path, content=piece)) == (409, "stdin_full")


async def test_cancelling_ends_the_tree_and_is_told(grouped: Daemon) -> None:
    status = await grouped.start("sleep 300 & sleep 300", grace_s=2)
    answer = await grouped.call("POST", f"/v1/exec/{status.id}/signal", json={"cancel": True})
    assert answer.status_code == 200
    result = Result(await grouped.until(status.id, "closed"))
    assert (result.status.reason, result.status.code) == ("cancelled", 143)
    assert alive_in_groups(grouped) == []


async def test_usage_is_measured(grouped: Daemon) -> None:
    status = (await grouped.run("exec python3 -c 'x = bytearray(50_000_000); sum(range(2_000_000))'")).status
    assert status.cgroup == "v1+unified" or status.cgroup == "v1"
    assert (status.cpu_s or 0) > 0.02
    assert (status.peak_memory_bytes or 0) > 50_000_000


async def test_groups_are_removed_when_their_last_process_has_gone(grouped: Daemon) -> None:
    result = await grouped.run("sleep .5 & true", until="exited")
    assert result.status.survivors
    await grouped.until(result.status.id, "closed", after=result.status.last_seq)
    await eventually(lambda: not any(list(Path(r).glob("cmd-*")) for r in grouped.cgroup_roots.values()))


async def test_version_2_groups_place_and_end_a_tree(grouped: Daemon) -> None:
    async with running(cgroups=2) as daemon:
        result = await daemon.run("setsid sleep 300 & sleep 60", timeout_s=0.5, grace_s=0)
        assert (result.status.cgroup, result.status.reason) == ("v2", "timeout")
        assert (result.status.cpu_s or 0) > 0
        assert alive_in_groups(daemon) == []


async def test_without_groups_a_timeout_still_ends_the_command_and_says_what_it_lacks() -> None:
    async with running(cgroups=None) as daemon:
        result = await daemon.run("sleep 60 | cat", timeout_s=0.5, grace_s=1)
        assert (result.status.reason, result.status.cgroup) == ("timeout", "unavailable")
        body = {"id": "limited", "script": "true", "limits": {"memory_bytes": 1 << 26}}
        assert problem(await daemon.call("POST", "/v1/exec", json=body)) == (409, "limit_unavailable")


async def test_commands_are_listed_and_unknown_ones_are_404(daemon: Daemon) -> None:
    await daemon.run("true", id="a.b-c_1")
    listed = decoded(await daemon.call("GET", "/v1/exec"), ExecList)
    assert [command.id for command in listed.commands] == ["a.b-c_1"]
    for path in ("/v1/exec/none", "/v1/exec/none/events", "/v1/exec/none/stream"):
        assert problem(await daemon.call("GET", path)) == (404, "exec_not_found")


async def test_lost_output_is_told_and_the_status_stays(daemon: Daemon) -> None:
    first = await daemon.run("yes | head -c 3000000")
    for _ in range(13):
        await daemon.run("yes | head -c 3000000")
    assert problem(await daemon.call("GET", f"/v1/exec/{first.status.id}/events")) == (410, "history_lost")
    assert (await daemon.status(first.status.id)).stdout_bytes == 3_000_000


async def test_events_come_in_pages(daemon: Daemon) -> None:
    await daemon.run("for i in 1 2 3; do echo $i; echo $i >&2; sleep .05; done", id="paged")
    after, seqs = 0, []
    while True:
        page = decoded(await daemon.call("GET", f"/v1/exec/paged/events?after={after}&limit=2"), EventPage)
        seqs += [event.seq for event in page.events]
        after = page.next_after
        if page.complete:
            break
    assert seqs == list(range(1, len(seqs) + 1))


async def test_a_long_poll_returns_empty_when_nothing_happens(daemon: Daemon) -> None:
    status = await daemon.start("sleep 60")
    path = f"/v1/exec/{status.id}/events?after={status.last_seq}&wait_s=0.2"
    page = decoded(await daemon.call("GET", path), EventPage)
    assert (page.events, page.next_after, page.complete) == ([], status.last_seq, False)


async def test_stopping_the_daemon_ends_every_command_in_order(grouped: Daemon) -> None:
    await grouped.start("trap 'echo bye > told; exit' TERM; sleep 300 & wait", grace_s=5)
    await grouped.start("setsid sleep 300")
    await eventually(lambda: len(alive_in_groups(grouped)) >= 3)
    grouped.process.terminate()
    await asyncio.to_thread(grouped.process.wait, 15)
    assert grouped.process.returncode == 0
    assert (grouped.workspace / "told").read_text() == "bye\n"
    assert alive_in_groups(grouped) == []
    with pytest.raises(httpx.TransportError):
        await grouped.call("GET", "/v1/hello")


async def test_a_tree_is_ended_by_the_freezer_where_nothing_better_is(grouped: Daemon) -> None:
    roots = {name: path for name, path in grouped.cgroup_roots.items() if name in ("freezer", "pids")}
    async with running(delegated={"version": 1, "roots": roots}) as daemon:
        script = "for i in 1 2 3 4; do (trap '' TERM; while :; do setsid sleep .05; done) & done; wait"
        result = await daemon.run(script, timeout_s=0.5, grace_s=0.1)
        assert (result.status.cgroup, result.status.reason) == ("v1", "timeout")
        assert alive_in_groups(grouped) == []


@pytest.mark.parametrize("limits", ['{"cpu_cores": 1e308}', f'{{"memory_bytes": {2**53}}}', f'{{"pids": 1{"0" * 30}}}'])
async def test_a_limit_that_no_machine_has_is_refused(daemon: Daemon, limits: str) -> None:
    body = f'{{"id": "huge", "script": "true", "limits": {limits}}}'
    answer = await daemon.call("POST", "/v1/exec", content=body.encode())
    assert answer.status_code == 400, answer.text
