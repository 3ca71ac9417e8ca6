"""What real tests stand on: root, a Docker Engine, the base's package and image cache.

``python -m tests.engines`` builds the base beforehand, so that no test waits for it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.bases.source import BaseCache, default_images_dir

ROOT = Path(__file__).parents[1]
BASE = "debian12"


def cache_dir() -> Path:
    """Packages and built bases, kept between runs: $WARMPOOL_TEST_CACHE, else below the user's cache."""
    given = os.environ.get("WARMPOOL_TEST_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else home / "warmpool"


def bases() -> BaseCache:
    return BaseCache(cache_dir=cache_dir(), images_dir=default_images_dir())


@contextmanager
def docker_engine() -> Iterator[str]:
    """The address of an engine: DOCKER_HOST where that is set, else a private one, ended afterwards.

    Raises CalledProcessError when none can be started; what it lacks is on standard error."""
    if given := os.environ.get("DOCKER_HOST"):
        yield given
        return
    # A socket's path may have 107 bytes at most; pytest's own folders can be longer.
    folder = tempfile.mkdtemp(prefix="wpe-", dir="/tmp")
    script = str(ROOT / "scripts" / "engine")
    try:
        started = subprocess.run(
            [script, "start", "--dir", folder], check=True, timeout=120, stdout=subprocess.PIPE, text=True
        )
        yield started.stdout.strip().partition("=")[2]
    finally:
        subprocess.run([script, "stop", "--dir", folder], check=True, timeout=120)
        shutil.rmtree(folder)


if __name__ == "__main__":
    asyncio.run(bases().ensure(BASE, lambda line: print(line, flush=True)))
