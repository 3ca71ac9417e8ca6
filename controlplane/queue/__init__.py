"""Where slow work goes: a port, and RQ behind it.

Belongs here: putting a job on a queue, once per job id, and running workers. Does not belong here: what
a job does (``jobs`` calls one service each). Only this package imports ``rq``; it is given a connection by
the store.
"""

from controlplane.queue.port import JobName, Queue, QueueName
from controlplane.queue.rq_queue import RqQueue
from controlplane.queue.rq_worker import run_worker

__all__ = ["JobName", "Queue", "QueueName", "RqQueue", "run_worker"]
