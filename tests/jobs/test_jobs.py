"""The jobs of a worker: one context and one loop for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from controlplane import jobs
from controlplane.errors import Permanent
from controlplane.jobs.context import run
from controlplane.queue.deadline import time_limit


class Recorder:
    """Stands for a service: notes what it is called with, and on which loop."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.loops: set[int] = set()
        self.closed = False
        self.cancelled = False

    async def provision(self, key: str) -> None:
        self._note("provision", key)

    async def retire(self, key: str) -> None:
        self._note("retire", key)

    async def build(self, key: str) -> None:
        self._note("build", key)

    async def close(self) -> None:
        self.closed = True

    async def hang(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def _note(self, what: str, key: str) -> None:
        self.calls.append((what, key))
        self.loops.add(id(asyncio.get_running_loop()))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()

    async def make() -> jobs.JobContext:
        return jobs.JobContext(provisioning=cast(Any, made), builder=cast(Any, made), close=made.close)

    jobs.configure(make)
    yield made
    jobs.shut_down()


def test_each_job_is_one_call_and_all_share_one_loop(recorder: Recorder) -> None:
    jobs.provision_sandbox("sb-1")
    jobs.retire_sandbox("sb-2")
    jobs.build_version("bd-3")
    assert recorder.calls == [("provision", "sb-1"), ("retire", "sb-2"), ("build", "bd-3")]
    assert len(recorder.loops) == 1


def test_a_job_past_its_time_limit_is_cancelled_and_the_next_one_runs(recorder: Recorder) -> None:
    with time_limit(0.05), pytest.raises(TimeoutError):
        run(lambda context: recorder.hang())
    assert recorder.cancelled
    jobs.retire_sandbox("sb-2")
    assert recorder.calls == [("retire", "sb-2")]


def test_shutting_down_releases_the_services_and_without_them_a_job_is_refused(recorder: Recorder) -> None:
    jobs.shut_down()
    assert recorder.closed
    with pytest.raises(Permanent) as caught:
        jobs.provision_sandbox("sb-1")
    assert caught.value.code == "not_configured"
