"""What every role process does to itself at its start."""

from __future__ import annotations

import gc
import logging
import sys

from controlplane.settings import Settings


def log_to_stderr(settings: Settings) -> None:
    level = settings.log_level.upper()
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("docker", "urllib3", "httpx", "httpcore", "rq.worker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def calm_garbage_collection() -> None:
    """Modules and services live for ever: leave them out, and look at the young less often.

    With ten thousand records alive a full collection takes tens of milliseconds, in the middle of a tick or attach."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
