"""The queue port on RQ.

RQ refuses a job id that it knows, alive or not, and finds out about dead workers only after minutes. So here
a put that is refused looks closer: a job that ended, or whose worker's pulse stopped, or that is on no
list any more (its worker died between taking and starting it), is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import rq
from rq.exceptions import DuplicateJobError, NoSuchJobError
from rq.job import Job, JobStatus

from controlplane.errors import Retryable
from controlplane.queue.port import JobName, QueueName
from controlplane.queue.rq_names import SERIALIZER, job_name, pulse_key, queue_name

_FAILURE_KEPT_S = 60
# Between taking a job off its list and noting that it started, a live worker needs some milliseconds.
_TAKEN_S = 5.0


class RqQueue:
    """``connection``: a synchronous client of the store's server, used in one thread of its own.

    ``functions``: where a job's function is found, as a dotted package name."""

    def __init__(self, connection: Any, deployment: str, *, functions: str = "controlplane.jobs") -> None:
        self._connection = connection
        self._deployment = deployment
        self._functions = functions
        self._queues: dict[str, Any] = {}
        self._unlisted: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queue")

    async def put(self, queue: QueueName, job: JobName, *args: str, job_id: str, timeout_s: float) -> bool:
        """``timeout_s``: a job that runs longer is interrupted."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._put, queue, job, args, job_id, timeout_s)
        except Exception as error:
            # RQ raises what its client raises, and ``redis`` is imported in the store only.
            if not type(error).__module__.startswith("redis") and not isinstance(error, OSError):
                raise
            raise Retryable("store_unavailable", f"The job queue can't be reached ({type(error).__name__}).") from error

    async def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._connection.close()

    def _put(self, queue: str, job: str, args: tuple[str, ...], job_id: str, timeout_s: float) -> bool:
        name = job_name(self._deployment, job_id)
        for _ in range(2):
            try:
                self._queue(queue).enqueue_call(
                    f"{self._functions}.{job}",
                    args=args,
                    timeout=max(1, int(timeout_s)),
                    result_ttl=0,
                    failure_ttl=_FAILURE_KEPT_S,
                    job_id=name,
                    description=f"{job} {' '.join(args)}",
                    unique=True,
                )
            except DuplicateJobError:
                if not self._remove_if_dead(name):
                    return False
            else:
                self._unlisted.pop(name, None)
                return True
        return False

    def _remove_if_dead(self, name: str) -> bool:
        try:
            known = Job.fetch(name, connection=self._connection, serializer=SERIALIZER)
        except NoSuchJobError:
            return True
        if not self._is_dead(known):
            return False
        with contextlib.suppress(NoSuchJobError):
            known.delete()
        return True

    def _is_dead(self, job: Job) -> bool:
        status = job.get_status(refresh=False)
        if status == JobStatus.STARTED:
            key = pulse_key(self._deployment, job.worker_name or "")
            return not self._connection.exists(key)
        if status != JobStatus.QUEUED:
            return True
        listed = self._connection.lpos(self._named(job.origin).key, job.id) is not None
        if listed:
            self._unlisted.pop(job.id, None)
            return False
        since = self._unlisted.setdefault(job.id, time.monotonic())
        return time.monotonic() - since > _TAKEN_S

    def _queue(self, queue: str) -> Any:
        return self._named(queue_name(self._deployment, queue))

    def _named(self, name: str) -> Any:
        if name not in self._queues:
            self._queues[name] = cast(Any, rq.Queue)(name, connection=self._connection, serializer=SERIALIZER)
        return self._queues[name]
