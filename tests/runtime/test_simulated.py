"""The simulated runtime keeps the contract, alone and shared between processes, and what is its own."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agents.wire import ExecEvent, ExecStart, SignalRequest
from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Conflict, Denied, NotFound, Retryable
from controlplane.ids import SandboxId, SessionId
from controlplane.model.resources import Resources
from controlplane.runtime.port import RunningSandbox, Runtime, SandboxSpec
from controlplane.runtime.simulated import (
    Fault,
    FaultPlan,
    FaultRate,
    LogNormal,
    SimulatedAgent,
    SimulatedRuntime,
    World,
)
from controlplane.runtime.simulated.commands import Outcome
from tests.runtime.contract import RuntimeContract
from tests.runtime.stage import Setting, door
from tests.runtime.walls import in_another_process

SE = SessionId("se-1")


class TestSimulatedRuntime(RuntimeContract):
    @pytest.fixture
    def setting(self, tmp_path: Path) -> Setting:
        return Setting(kind="simulated", state_dir=tmp_path)

    async def test_what_a_killed_process_created_is_there_for_the_others(self, setting: Setting) -> None:
        runtime = SimulatedRuntime(setting.state_dir, 0, deployment=setting.deployment)
        base = await runtime.ensure_base("debian12", print)
        spec = _spec(base.ref)
        await in_another_process(setting, spec, until_line="created")
        [found] = await runtime.list_sandboxes()
        assert found == await runtime.create(spec)
        assert (await runtime.agent().ready(door(found), wait_s=5)).ready

    async def test_one_that_was_killed_halfway_is_partial_until_it_is_finished(self, setting: Setting) -> None:
        slow = Setting(kind="simulated", state_dir=setting.state_dir, start_s=1000)
        runtime = SimulatedRuntime(setting.state_dir, 0, deployment=setting.deployment)
        base = await runtime.ensure_base("debian12", print)
        spec = _spec(base.ref)
        creator = asyncio.create_task(in_another_process(slow, spec, kill_after_s=2))
        await _until_listed(runtime)
        [partial] = await runtime.list_sandboxes()
        assert (partial.state, partial.door) == ("partial", None)
        await creator
        assert (await runtime.create(spec)).state == "running"
        await runtime.destroy(spec.id)
        assert await runtime.list_sandboxes() == []


@pytest.fixture
def runtime() -> SimulatedRuntime:
    return SimulatedRuntime(None, 0)


@pytest.fixture
async def sandbox(runtime: SimulatedRuntime) -> RunningSandbox:
    return await _made(runtime)


async def test_it_is_a_runtime_and_its_agent_is_an_agent_client(runtime: SimulatedRuntime) -> None:
    as_port: Runtime = runtime
    as_client: AgentClient = runtime.agent()
    assert (await as_port.capabilities()).runtime == "simulated"
    await as_client.close()


async def test_a_bind_in_memory_takes_less_than_fifty_microseconds(runtime: SimulatedRuntime) -> None:
    agent = runtime.agent()
    doors = [door(await _made(runtime, f"sb-{number}")) for number in range(300)]
    taken = []
    for each in doors:
        started = time.perf_counter()
        await agent.bind(each, SE, "acme", {"A": "b"}, {})
        taken.append(time.perf_counter() - started)
    assert statistics.median(taken) < 50e-6


async def test_a_bind_shared_between_processes_takes_less_than_a_millisecond(tmp_path: Path) -> None:
    shared = SimulatedRuntime(tmp_path, 0)
    agent = shared.agent()
    doors = [door(await _made(shared, f"sb-{number}")) for number in range(100)]
    taken = []
    for each in doors:
        started = time.perf_counter()
        await agent.bind(each, SE, "acme", {}, {})
        taken.append(time.perf_counter() - started)
    assert statistics.median(taken) < 1e-3


async def test_of_many_sessions_that_bind_at_once_one_holds_it(tmp_path: Path) -> None:
    made = await _made(SimulatedRuntime(tmp_path, 0))
    agents = [SimulatedAgent(World(tmp_path)) for _ in range(20)]

    async def claim(number: int) -> bool:
        try:
            return (await agents[number].bind(door(made), SessionId(f"se-{number}"), "acme", {}, {})).first
        except Conflict:
            return False

    won = await asyncio.gather(*(claim(number) for number in range(20)))
    assert sum(won) == 1


async def test_it_is_ready_only_after_its_start_time() -> None:
    runtime = SimulatedRuntime(None, 0.2, sigma=0)
    started = time.monotonic()
    made = await _made(runtime)
    assert not (await runtime.agent().ready(door(made), wait_s=0)).ready
    assert (await runtime.agent().ready(door(made), wait_s=10)).ready
    assert time.monotonic() - started >= 0.19


def test_latencies_spread_around_their_median_and_repeat_with_their_seed() -> None:
    one, two = LogNormal(0.5, seed=3), LogNormal(0.5, seed=3)
    samples = [one.sample() for _ in range(2000)]
    assert samples == [two.sample() for _ in range(2000)]
    assert statistics.median(samples) == pytest.approx(0.5, rel=0.05)
    assert max(samples) > 0.7


async def test_a_planned_fault_comes_once_and_one_after_the_call_lets_it_take_effect() -> None:
    lost = Fault(error=lambda: Retryable("lost", "The answer was lost."), moment="after")
    broken = Fault(error=lambda: Retryable("broken", "It broke."))
    runtime = SimulatedRuntime(None, 0, faults=FaultPlan({"create": [broken, lost]}))
    base = await runtime.ensure_base("debian12", print)
    with pytest.raises(Retryable, match="broke"):
        await runtime.create(_spec(base.ref))
    assert await runtime.list_sandboxes() == []
    with pytest.raises(Retryable, match="lost"):
        await runtime.create(_spec(base.ref))
    assert len(await runtime.list_sandboxes()) == 1
    assert (await runtime.create(_spec(base.ref))).state == "running"


async def test_random_faults_come_about_as_often_as_told_and_only_where_told() -> None:
    runtime = SimulatedRuntime(None, 0, faults=FaultRate(0.3, calls=frozenset({"inspect"}), seed=1))
    failed = 0
    await _made(runtime)
    for _ in range(500):
        try:
            await runtime.inspect(SandboxId("sb-1"))
        except Retryable as error:
            assert error.code == "injected_fault"
            failed += 1
    assert 100 < failed < 200


@pytest.mark.parametrize(
    ("script", "code", "out"),
    [
        ("true", 0, ""),
        ("exit 7", 7, ""),
        ("echo one; echo 'two  three'", 0, "one\ntwo  three\n"),
        ("false && echo never || echo other", 0, "other\n"),
        ("echo before\nexit 3\necho after", 3, "before\n"),
        ("bash -c 'echo deeper; exit 4'", 4, "deeper\n"),
        ("printenv COLOUR", 0, "blue\n"),
        ("cat note.txt", 0, "written"),
        ("cat missing.txt", 1, "cat: missing.txt: No such file or directory\n"),
    ],
)
async def test_the_few_commands_it_knows_do_what_they_do_elsewhere(
    runtime: SimulatedRuntime, sandbox: RunningSandbox, script: str, code: int, out: str
) -> None:
    agent = runtime.agent()
    await agent.bind(door(sandbox), SE, "acme", {"COLOUR": "blue"}, {})
    await agent.file_write(door(sandbox), SE, "/workspace/note.txt", _chunks(b"written"), None)
    events = await _events(agent, door(sandbox), ExecStart(id="ex-1", script=script))
    assert "".join(event.text or "" for event in events) == out
    assert events[-1].status is not None
    assert events[-1].status.code == code
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("script", ["git clone x", "echo a | cat", "echo $HOME", "echo x > y", "'unclosed"])
async def test_what_it_does_not_know_exits_127_and_says_that_it_is_simulated(
    runtime: SimulatedRuntime, sandbox: RunningSandbox, script: str
) -> None:
    events = await _events(runtime.agent(), door(sandbox), ExecStart(id="ex-1", script=script))
    assert events[-1].status is not None
    assert events[-1].status.code == 127
    assert "simulated" in "".join(event.text or "" for event in events if event.kind == "stderr")


async def test_a_test_can_teach_it_a_program(runtime: SimulatedRuntime, sandbox: RunningSandbox) -> None:
    agent = SimulatedAgent(runtime.world, programs={"git": Outcome(stdout="cloned\n", code=0)})
    events = await _events(agent, door(sandbox), ExecStart(id="ex-1", argv=["git", "clone", "x"]))
    assert [event.text for event in events if event.kind == "stdout"] == ["cloned\n"]


async def test_a_command_runs_out_of_time_or_is_ended_from_outside(
    runtime: SimulatedRuntime, sandbox: RunningSandbox
) -> None:
    agent, where = runtime.agent(), door(sandbox)
    timed_out = await _events(agent, where, ExecStart(id="ex-1", script="sleep 60", timeout_s=0.05))
    assert timed_out[-1].status is not None
    assert (timed_out[-1].status.reason, timed_out[-1].status.code) == ("timeout", 143)
    running = await agent.exec_start(where, None, ExecStart(id="ex-2", script="sleep 60"))
    assert running.state == "running"
    assert (await agent.binding(where)).running == 1
    page = asyncio.create_task(agent.exec_events(where, None, "ex-2", 1, wait_s=30))
    ended = await agent.exec_signal(where, None, "ex-2", SignalRequest(signal="KILL"))
    assert (ended.reason, ended.signal, ended.code) == ("signal", "KILL", 137)
    assert [event.kind for event in (await page).events] == ["exited", "closed"]
    assert (await agent.binding(where)).running == 0


async def test_a_known_command_id_starts_nothing_again(runtime: SimulatedRuntime, sandbox: RunningSandbox) -> None:
    agent, where = runtime.agent(), door(sandbox)
    first = await agent.exec_start(where, None, ExecStart(id="ex-1", script="exit 1"))
    again = await agent.exec_start(where, None, ExecStart(id="ex-1", script="exit 2"))
    assert (again.started_at, again.code) == (first.started_at, 1)
    assert len((await agent.exec_list(where, None)).commands) == 1
    with pytest.raises(NotFound):
        await agent.exec_status(where, None, "ex-2")


async def test_a_session_speaks_only_to_the_sandbox_it_holds(
    runtime: SimulatedRuntime, sandbox: RunningSandbox
) -> None:
    with pytest.raises(Denied):
        await runtime.agent().exec_start(door(sandbox), SE, ExecStart(id="ex-1", script="true"))


async def test_a_sandbox_that_died_is_stopped_and_silent(runtime: SimulatedRuntime, sandbox: RunningSandbox) -> None:
    runtime.kill(sandbox.id)
    found = await runtime.inspect(sandbox.id)
    assert found is not None
    assert (found.state, found.door) == ("stopped", None)
    with pytest.raises(Retryable) as caught:
        await runtime.agent().bind(door(sandbox), SE, "acme", {}, {})
    assert caught.value.code == "sandbox_unreachable"


async def test_files_are_listed_read_and_deleted(runtime: SimulatedRuntime, sandbox: RunningSandbox) -> None:
    agent, where = runtime.agent(), door(sandbox)
    for path in ("a.txt", "sub/b.txt", "/etc/c.txt"):
        await agent.file_write(where, None, path, _chunks(path.encode()), "0600")
    listed = await agent.file_list(where, None, "/workspace")
    assert [(entry.path, entry.kind) for entry in listed.entries] == [
        ("/workspace/a.txt", "file"),
        ("/workspace/sub", "directory"),
    ]
    await agent.file_delete(where, None, "sub", True)
    with pytest.raises(NotFound):
        await _read(agent, where, "sub/b.txt")
    assert await _read(agent, where, "/workspace/../etc/c.txt") == b"/etc/c.txt"


def _spec(image: str, sandbox: str = "sb-1") -> SandboxSpec:
    return SandboxSpec(id=SandboxId(sandbox), image=image, resources=Resources())


async def _made(runtime: SimulatedRuntime, sandbox: str = "sb-1") -> RunningSandbox:
    base = await runtime.ensure_base("debian12", lambda line: None)
    return await runtime.create(_spec(base.ref, sandbox))


async def _events(agent: AgentClient, where: Door, start: ExecStart) -> list[ExecEvent]:
    await agent.exec_start(where, None, start)
    return [event async for event in agent.exec_stream(where, None, start.id, 0)]


async def _read(agent: AgentClient, where: Door, path: str) -> bytes:
    return b"".join([chunk async for chunk in agent.file_read(where, None, path)])


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _until_listed(runtime: SimulatedRuntime) -> None:
    deadline = time.monotonic() + 20
    while not await runtime.list_sandboxes():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
