"""Jobs for a real worker process: each tells what it does by lines in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path


def _tell(folder: str, line: str) -> None:
    with (Path(folder) / "told").open("a") as handle:
        handle.write(f"{line} {os.getpid()} {time.time()}\n")


def provision_sandbox(folder: str) -> None:
    """Ends once the file ``go`` is there."""
    _tell(folder, "start")
    while not (Path(folder) / "go").exists():
        time.sleep(0.005)
    _tell(folder, "end")


def retire_sandbox(folder: str) -> None:
    _tell(folder, "retire")


def build_version(folder: str) -> None:
    _tell(folder, "raise")
    raise RuntimeError("a fault in a job")
