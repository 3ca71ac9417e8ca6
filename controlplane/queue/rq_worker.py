"""Workers: one process, one job at a time, in this process, so that a job starts within milliseconds."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rq.timeouts import BaseDeathPenalty
from rq.worker import SimpleWorker

from controlplane.queue.deadline import time_limit
from controlplane.queue.port import QueueName
from controlplane.queue.rq_job import jobs_of
from controlplane.queue.rq_names import SERIALIZER, pulse_key, queue_name

log = logging.getLogger(__name__)

# The pulse tells that the process lives, also while a job keeps it busy: three beats may be missed.
_BEAT_S = 1.0
_PULSE_MS = 4000
_LONGEST_PAUSE_S = 5.0


def run_worker(
    queues: Sequence[QueueName], connection: Any, deployment: str, *, functions: str = "controlplane.jobs"
) -> None:
    """Work on the queues, the first first, until SIGTERM or SIGINT; a job that runs then is finished first.

    Survives the loss of the server. ``connection``: a synchronous client whose blocking calls may take long.
    Must be called in the main thread. ``functions``: the package that holds the jobs."""
    _Stopping.requested = False
    pause_s = 0.1
    while not _Stopping.requested:
        began = time.monotonic()
        try:
            _work_once(queues, connection, deployment, functions)
        except Exception as error:
            log.warning("worker: %s: %s", type(error).__name__, error)
        if time.monotonic() - began > 10:
            pause_s = 0.1
        if not _Stopping.requested:
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


class _Stopping:
    """Whether a signal asked this process to stop; outlives the worker objects of one run."""

    requested = False


def _work_once(queues: Sequence[QueueName], connection: Any, deployment: str, functions: str) -> None:
    name = f"{deployment}-{os.getpid()}-{secrets.token_hex(4)}"
    names = [queue_name(deployment, queue) for queue in queues]
    with _Pulse(connection, pulse_key(deployment, name)):
        worker = _QuickWorker(
            names,
            name=name,
            connection=connection,
            serializer=SERIALIZER,
            job_class=jobs_of(functions),
            log_job_description=False,
            default_result_ttl=0,
        )
        worker.work(logging_level="WARNING")


class _NotedLimit(BaseDeathPenalty):
    """RQ's time limit around a job, noted for ``jobs`` rather than enforced by a signal."""

    def setup_death_penalty(self) -> None:
        self._limit = time_limit(self._timeout)
        self._limit.__enter__()

    def cancel_death_penalty(self) -> None:
        self._limit.__exit__(None, None, None)


class _QuickWorker(SimpleWorker):
    """Runs jobs in this process and thread; what has a loop or connections open keeps them between jobs."""

    death_penalty_class = _NotedLimit
    log_result_lifespan = False

    def _set_ip_address(self, connection: Any) -> None:
        """Not asked for: the server names its socket's path, and redis-py stumbles over a space in it."""
        self.ip_address = "unknown"

    def subscribe(self) -> None:
        """No remote commands: anybody with access to the server could stop workers by them."""

    def unsubscribe(self) -> None: ...

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        _Stopping.requested = True
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def request_force_stop(self, signum: int, frame: FrameType | None) -> None:
        """A second signal changes nothing: every job may be killed at any step, but none has to be."""
        log.info("worker: signal %s noted already; finishing the present job", signal.Signals(signum).name)

    def procline(self, message: str) -> None:
        """The process keeps its name."""


class _Pulse:
    """Keeps a key alive in the server for as long as the process lives."""

    def __init__(self, connection: Any, key: str) -> None:
        self._connection = connection
        self._key = key
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="worker-pulse", daemon=True)

    def __enter__(self) -> _Pulse:
        self._connection.set(self._key, "1", px=_PULSE_MS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=_BEAT_S)
        try:
            self._connection.delete(self._key)
        except Exception as error:
            log.debug("pulse not taken back, it ends by itself: %s", error)

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_S):
            try:
                self._connection.set(self._key, "1", px=_PULSE_MS)
            except Exception as error:
                log.warning("worker: pulse not sent: %s", error)
