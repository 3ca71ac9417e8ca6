"""Who can write to the store must not thereby run code in workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import rq

from controlplane.queue import RqQueue
from controlplane.queue.rq_names import SERIALIZER, queue_name
from controlplane.store.connection import connect_sync
from tests.provisioning.plant import until
from tests.queue.test_rq_queue import StartWorker, heard, queue, start_worker

__all__ = ["queue", "start_worker"]


@pytest.mark.parametrize("callback", ["_success_callback_name", "_failure_callback_name", "_stopped_callback_name"])
async def test_a_worker_runs_no_function_that_is_no_job(
    queue: RqQueue, start_worker: StartWorker, valkey_url: str, deployment: str, tmp_path: Path, callback: str
) -> None:
    foreign = cast(Any, rq.Queue)(
        queue_name(deployment, "urgent"),
        connection=connect_sync(valkey_url, connect_timeout_s=5.0, operation_timeout_s=20.0),
        serializer=SERIALIZER,
    )
    fell_for_it = tmp_path / "fell"
    foreign.enqueue_call("os.system", args=(f"touch {fell_for_it}",))
    foreign.enqueue_call("tests.queue.jobs._tell", args=(str(tmp_path), "private"))
    foreign.enqueue_call("format", args=("x",))
    job = foreign.enqueue_call("tests.queue.jobs.retire_sandbox", args=(str(tmp_path),))
    # As RQ would keep a callback of its own; given (job, connection, result), it could be any callable.
    job.connection.hset(job.key, callback.strip("_"), "tests.attack.test_foreign_jobs.called")
    assert await queue.put("urgent", "retire_sandbox", str(tmp_path), job_id="ours", timeout_s=20.0)
    start_worker("urgent")
    await until(heard(tmp_path, "retire", "retire"))
    assert not fell_for_it.exists()
    assert not called_file().exists()


def called_file() -> Path:
    return Path(__file__).with_name("called")


def called(*_: object) -> None:
    called_file().touch()
