"""``python -m tests.queue.worker URL DEPLOYMENT QUEUE...``: a real worker."""

from __future__ import annotations

import sys
from typing import Any, cast

from controlplane.queue import run_worker
from controlplane.store.connection import connect_sync

if __name__ == "__main__":
    url, deployment, *queues = sys.argv[1:]
    connection = connect_sync(url, connect_timeout_s=5.0, operation_timeout_s=None)
    run_worker(cast(Any, queues), connection, deployment, functions="tests.queue.jobs")
