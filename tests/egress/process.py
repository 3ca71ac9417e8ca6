"""The gateway as a process of its own, and how tests kill it and start it again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import msgspec

from agents.wire.egress import DoorSpec
from controlplane.egressclient import HttpEgressGateway
from controlplane.errors import Retryable
from controlplane.ids import SandboxId

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0
_PROXY_VARIABLES = {"http_proxy", "https_proxy", "no_proxy", "all_proxy"}


class GatewayProcess:
    """``async with GatewayProcess(folder) as gateway``; ``client`` is the control plane's client of it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.log = folder / "audit.jsonl"
        self.control = folder / "control.sock"
        self.doors = folder / "doors"
        self._options = options
        self.client = HttpEgressGateway(self.control)
        self.process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> GatewayProcess:
        self.doors.mkdir(exist_ok=True)
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(START_S)

    def command(self) -> list[str]:
        paths = ["--control", str(self.control), "--doors-dir", str(self.doors), "--log-file", str(self.log)]
        return [sys.executable, "-m", "agents.egress", *paths, *self._options]

    async def start(self) -> None:
        """Starts it and waits until it answers."""
        self.process = self._spawn()
        deadline = time.monotonic() + START_S
        while True:
            try:
                await self.client.health()
                return
            except Retryable:
                assert self.process.poll() is None, (self.folder / "stderr").read_text()
                assert time.monotonic() < deadline, "the gateway does not start"
                await asyncio.sleep(0.02)

    def start_and_fail(self) -> str:
        """Starts another process with the same arguments, which must refuse to run; gives its reason."""
        done = subprocess.run(self.command(), capture_output=True, timeout=START_S, cwd=ROOT, check=False)
        assert done.returncode == 1
        return done.stderr.decode()

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if key.lower() not in _PROXY_VARIABLES}
        with (self.folder / "stderr").open("ab") as errors:
            return subprocess.Popen(self.command(), cwd=ROOT, env=environment, stderr=errors)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(START_S)

    async def open(self, name: str, *allow: str) -> Path:
        (self.doors / name).mkdir(exist_ok=True)
        report = await self.client.put_door(SandboxId(name), DoorSpec(allow=list(allow), labels={"pool": "t/p"}))
        return Path(report.socket_path)

    def rows(self) -> list[dict[str, object]]:
        return [msgspec.json.decode(line) for line in self.log.read_bytes().splitlines()]

    def memory_bytes(self, key: str) -> int:
        """``VmRSS`` or ``VmHWM`` of the process."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(key)
