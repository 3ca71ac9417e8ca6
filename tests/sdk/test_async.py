"""The asynchronous flavour does the same, and can be cancelled."""

from __future__ import annotations

import asyncio
import io
import time

import pytest

from tests.sdk.contract import Served
from warmpool import AsyncSandbox, AsyncWarmpool, CommandExitException, ConflictException, StreamBroken


async def test_a_session_is_attached_used_and_ended_by_its_block(served: Served) -> None:
    async with await AsyncSandbox.create("demo", metadata={"a": "b"}) as sb:
        assert sb.start == "warm"
        said: list[str] = []

        async def hear(text: str) -> None:
            await asyncio.sleep(0)
            said.append(text)

        result = await sb.commands.run("echo hi; echo no >&2", on_stdout=hear, on_stderr=said.append)
        assert (result.stdout, sorted(said)) == ("hi\n", ["hi\n", "no\n"])
        with pytest.raises(CommandExitException):
            await sb.commands.run("exit 1")
        assert [s.id for s in await AsyncSandbox.list(metadata={"a": "b"})] == [sb.id]
        assert await sb.is_running()
        assert (await sb.set_timeout(9)).ttl_s == 9
    assert served.contract.sessions[sb.id]["state"] == "ended"
    assert await AsyncSandbox.kill(sb.id) is False
    with pytest.raises(ConflictException):
        await AsyncSandbox.connect(sb.id)


async def test_background_commands_and_files_work_the_same(served: Served) -> None:
    async with await AsyncSandbox.create("demo") as sb:
        handle = await sb.commands.run("read x; echo got $x", background=True, stdin=True)
        await handle.send_stdin("it\n")
        kinds = [event.kind async for event in handle]
        assert kinds[-1] == "closed"
        assert (await handle.wait()).stdout == "got it\n"
        assert (await (await sb.commands.connect(handle.id)).wait()).stdout == "got it\n"
        await sb.files.write("f", io.BytesIO(b"x" * 100_000))
        assert await sb.files.read("f") == "x" * 100_000
        assert [len(piece) async for piece in await sb.files.read("f", format="stream")]
        assert await sb.files.exists("f")


async def test_many_sessions_share_the_connections_of_one_client(served: Served) -> None:
    async with AsyncWarmpool() as api:
        sandboxes = await asyncio.gather(*(api.attach("demo") for _ in range(20)))
        results = await asyncio.gather(*(sb.commands.run("echo $$") for sb in sandboxes))
        assert len({sb.id for sb in sandboxes}) == len({result.stdout for result in results}) == 20
        assert all(await asyncio.gather(*(sb.kill() for sb in sandboxes)))


async def test_a_cancelled_attach_ends_its_session(served: Served) -> None:
    served.contract.slow_s = 60
    waiting = asyncio.create_task(AsyncSandbox.create("slow", wait=50))
    await _until(lambda: bool(served.contract.sessions))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [s["state"] for s in served.contract.sessions.values()] == ["ended"]


async def test_a_cancelled_command_is_cancelled_in_the_sandbox(served: Served) -> None:
    async with await AsyncSandbox.create("demo") as sb:
        running = asyncio.create_task(sb.commands.run("sleep 60"))
        await _until(lambda: bool(served.contract.commands) and served.calls("GET", "/stream") > 0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        (command,) = served.contract.commands.values()
        await _until(lambda: command.closed)
        assert command.exited["reason"] == "cancelled"


async def test_broken_streams_are_resumed_or_reported(served: Served) -> None:
    async with await AsyncSandbox.create("demo") as sb:
        served.faults.plan("GET", "/stream", times=2, cut_after=170)
        assert (await sb.commands.run("echo a; sleep 0.1; echo b")).stdout == "a\nb\n"
        served.faults.plan("GET", "/stream", times=50, cut_after=0)
        with pytest.raises(StreamBroken):
            await sb.commands.run("echo hi")


async def test_an_iteration_that_is_left_closes_its_connection(served: Served) -> None:
    async with AsyncWarmpool() as api:
        async for event in api.events.follow(after="0"):
            assert event.id == "1"
            break


async def _until(condition: object, within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, "it did not come about in time"
        await asyncio.sleep(0.01)
