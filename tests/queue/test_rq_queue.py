"""The queue on a real server with real worker processes: once per id, quick, and safe from kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from controlplane.errors import Retryable
from controlplane.queue import RqQueue
from controlplane.store.connection import connect_sync
from tests.provisioning.plant import until

ROOT = Path(__file__).parents[2]
StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
async def queue(valkey_url: str, deployment: str) -> AsyncIterator[RqQueue]:
    connection = connect_sync(valkey_url, connect_timeout_s=5.0, operation_timeout_s=20.0)
    made = RqQueue(connection, deployment, functions="tests.queue.jobs")
    yield made
    await made.close()


@pytest.fixture
def start_worker(valkey_url: str, deployment: str) -> Iterator[StartWorker]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*queues: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "tests.queue.worker", valkey_url, deployment, *(queues or ("urgent", "refill"))]
        started.append(subprocess.Popen(argv, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def told(folder: Path) -> list[tuple[str, int, float]]:
    path = folder / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(what, int(pid), float(at)) for what, pid, at in (line.split() for line in lines)]


def heard(folder: Path, *words: str) -> Callable[[], Awaitable[bool]]:
    """Whether exactly these lines were told so far."""

    async def asked() -> bool:
        return [what for what, _, _ in told(folder)] == list(words)

    return asked


async def put(queue: RqQueue, folder: Path, job_id: str = "job-1", name: str = "urgent") -> bool:
    return await queue.put(name, "provision_sandbox", str(folder), job_id=job_id, timeout_s=60)  # type: ignore[arg-type]


async def test_a_job_is_queued_once_while_it_waits_and_while_it_runs_and_again_after_it_ended(
    queue: RqQueue, start_worker: StartWorker, tmp_path: Path
) -> None:
    assert await put(queue, tmp_path)
    assert not await put(queue, tmp_path)
    assert not await put(queue, tmp_path, name="refill")
    start_worker()
    await until(heard(tmp_path, "start"))
    assert not await put(queue, tmp_path)
    (tmp_path / "go").touch()
    await until(heard(tmp_path, "start", "end"))

    async def put_again() -> bool:
        return await put(queue, tmp_path)

    await until(put_again)
    await until(heard(tmp_path, "start", "end", "start", "end"))


async def test_the_job_of_a_worker_killed_with_9_returns_when_it_is_put_again(
    queue: RqQueue, start_worker: StartWorker, tmp_path: Path
) -> None:
    victim = start_worker()
    await put(queue, tmp_path)
    await until(heard(tmp_path, "start"))
    victim.kill()
    victim.wait()
    start_worker()

    async def returned() -> bool:
        return await put(queue, tmp_path)

    await until(returned)
    (tmp_path / "go").touch()
    await until(heard(tmp_path, "start", "start", "end"))
    assert told(tmp_path)[0][1] == victim.pid != told(tmp_path)[1][1]


async def test_a_job_lost_between_taking_and_starting_returns_when_it_is_put_again(
    queue: RqQueue, valkey_url: str, deployment: str, tmp_path: Path
) -> None:
    await put(queue, tmp_path)
    connection = connect_sync(valkey_url, connect_timeout_s=5.0, operation_timeout_s=20.0)
    # What a worker does first; then it dies.
    assert connection.lpop(f"rq:queue:warmpool-{deployment}-urgent") is not None
    assert not await put(queue, tmp_path)

    async def returned() -> bool:
        return await put(queue, tmp_path)

    await until(returned)
    assert connection.llen(f"rq:queue:warmpool-{deployment}-urgent") == 1
    connection.close()


async def test_a_worker_finishes_its_job_on_sigterm_and_then_ends(
    queue: RqQueue, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker()
    await put(queue, tmp_path)
    await put(queue, tmp_path, job_id="job-2")
    await until(heard(tmp_path, "start"))
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert await asyncio.to_thread(worker.wait, 20) == 0
    assert [what for what, _, _ in told(tmp_path)] == ["start", "end"]
    assert not await put(queue, tmp_path, job_id="job-2")


async def test_an_idle_worker_ends_at_once_on_sigterm(
    queue: RqQueue, start_worker: StartWorker, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    worker = start_worker()
    await put(queue, tmp_path)
    await until(heard(tmp_path, "start", "end"))
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 20) == 0


async def test_urgent_jobs_come_first_and_a_job_that_raises_stops_nothing(
    queue: RqQueue, start_worker: StartWorker, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    await queue.put("refill", "retire_sandbox", str(tmp_path), job_id="later", timeout_s=60)
    await queue.put("urgent", "build_version", str(tmp_path), job_id="bad", timeout_s=60)
    await put(queue, tmp_path)
    start_worker()
    await until(heard(tmp_path, "raise", "start", "end", "retire"))

    async def put_again() -> bool:
        return await queue.put("urgent", "build_version", str(tmp_path), job_id="bad", timeout_s=60)

    await until(put_again)


async def test_a_job_starts_within_milliseconds(queue: RqQueue, start_worker: StartWorker, tmp_path: Path) -> None:
    start_worker("urgent", "refill", "retire")
    await queue.put("retire", "retire_sandbox", str(tmp_path), job_id="first", timeout_s=60)
    await until(heard(tmp_path, "retire"))
    delays = []
    for number in range(20):
        at = time.time()
        await queue.put("retire", "retire_sandbox", str(tmp_path), job_id=f"n-{number}", timeout_s=60)
        await until(heard(tmp_path, *["retire"] * (number + 2)))
        delays.append(told(tmp_path)[-1][2] - at)
    # The target is 15 ms; a busy machine may take longer, polling once a second would be 500.
    assert sorted(delays)[len(delays) // 2] < 0.1, delays


async def test_deployments_on_one_server_do_not_see_each_others_jobs(
    queue: RqQueue, valkey_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    connection = connect_sync(valkey_url, connect_timeout_s=5.0, operation_timeout_s=20.0)
    other = RqQueue(connection, f"other-{os.getpid()}", functions="tests.queue.jobs")
    assert await put(queue, tmp_path)
    assert await put(other, tmp_path)
    start_worker()
    await until(heard(tmp_path, "start", "end"))
    assert not await put(other, tmp_path)
    await other.close()


async def test_without_a_server_a_put_fails_promptly_and_typed(tmp_path: Path) -> None:
    connection = connect_sync(f"unix://{tmp_path}/none.sock", connect_timeout_s=1.0, operation_timeout_s=1.0)
    queue = RqQueue(connection, "none")
    with pytest.raises(Retryable) as caught:
        await put(queue, tmp_path)
    assert caught.value.code == "store_unavailable"
    await queue.close()
