"""A whole Warmpool deployment as a child process, as ``warmpool up`` gives it; for quickstart, benchmarks and tests."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class DeploymentFailed(Exception):
    """``warmpool up`` ended or did not answer in time; the text holds what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    url: str
    api_key: str
    state_dir: Path
    process: subprocess.Popen[str]

    def logs(self, role: str) -> str:
        path = self.state_dir / "logs" / f"{role}.log"
        return path.read_text(errors="replace") if path.exists() else ""


@contextlib.contextmanager
def deployment(
    state_dir: Path,
    *,
    name: str,
    settings: Mapping[str, str],
    keep_sandboxes: bool = False,
    start_timeout_s: float = 90.0,
) -> Iterator[Deployment]:
    """Run ``warmpool up`` until the block ends. ``settings``: environment variables such as WARMPOOL_RUNTIME__KIND.

    ``name`` is the deployment's; it must not be ``default`` (a user's own credentials would be overwritten)."""
    credentials = state_dir / "credentials.json"
    credentials.unlink(missing_ok=True)
    process = start(state_dir, name=name, settings=settings, keep_sandboxes=keep_sandboxes)
    try:
        found = wait_until_up(process, credentials, start_timeout_s)
        yield Deployment(url=found["url"], api_key=found["api_key"], state_dir=state_dir, process=process)
    finally:
        stop(process)


def start(
    state_dir: Path, *, name: str, settings: Mapping[str, str], keep_sandboxes: bool = False
) -> subprocess.Popen[str]:
    assert name != "default"
    state_dir.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WARMPOOL_")} | dict(settings)
    command = [sys.executable, "-m", "controlplane.cli", "up", "--state-dir", str(state_dir)]
    command += ["--deployment", name, *(["--keep-sandboxes"] if keep_sandboxes else [])]
    with (state_dir / "up.log").open("w") as log:
        return subprocess.Popen(
            command,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


def end_with_parent() -> None:
    """For a child, before its program starts: when this process dies, however, the child gets SIGTERM."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_until_up(process: subprocess.Popen[str], credentials: Path, timeout_s: float) -> dict[str, str]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            found: dict[str, str] = json.loads(credentials.read_text())
            return found
        except (OSError, ValueError):
            time.sleep(0.05)
    raise DeploymentFailed((credentials.parent / "up.log").read_text(errors="replace")[-4000:])


def stop(process: subprocess.Popen[str], timeout_s: float = 60.0) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
