"""Starting a bundle with the OCI runtime, and knowing later whether its first process still runs."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import Permanent, Retryable
from controlplane.runtime.local import kernel
from controlplane.runtime.local.process import run
from controlplane.runtime.local.records import SandboxPlace, StartedRecord

_START_TIMEOUT_S = 30.0
# The socket arrives as stdin, whatever its number; the runtime hands number 3 on to the first process.
_HAND_OVER = 'exec 3<&0 </dev/null && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class OciRuntime:
    """``binary``: runc, crun or a path. ``state``: its own state folder, apart from every other user's."""

    binary: str
    state: Path

    async def start(self, sandbox: str, place: SandboxPlace, door: socket.socket, lock: int) -> StartedRecord:
        """Start the bundle in ``place``; returns once its first process runs.

        ``lock``: descriptor of the sandbox's lock. The runtime inherits it, so that after a crash of this
        process nobody takes the sandbox apart while it is still being started.
        Raises Retryable ``sandbox_start_failed``, Permanent ``tool_missing``.
        """
        argv = [
            *("/bin/sh", "-c", _HAND_OVER, "sh"),
            *(self.binary, "--root", str(self.state), "run", "--detach", "--preserve-fds", "1", *self._keyring()),
            *("--pid-file", str(place.pid_file), "--bundle", str(place.bundle), sandbox),
        ]
        # Above the numbers that the shell and the runtime give out themselves.
        held = fcntl.fcntl(lock, fcntl.F_DUPFD_CLOEXEC, 100)
        handle = os.open(place.console, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            code, _ = await run(argv, timeout_s=_START_TIMEOUT_S, stdin=door.fileno(), output=handle, pass_fds=(held,))
        finally:
            os.close(handle)
            os.close(held)
        started = started_record(place.pid_file) if code == 0 else None
        if started is None:
            raise start_failed(self.binary, last_of(place.console))
        return started

    def _keyring(self) -> list[str]:
        """A keyring that the runtime makes is owned by the sandbox's root, a uid of the host that all sandboxes
        have in common: at 200 of them the quota of keys is used up and nothing starts any more. So the sandbox
        inherits one of ours: empty, its own, and out of its reach by seccomp."""
        if Path(self.binary).name in ("runc", "crun") and kernel.join_fresh_keyring():
            return ["--no-new-keyring"]
        return []


def last_of(console: Path, size: int = 1500) -> str:
    """The end of what was written to the console, which a program in the sandbox may have made very long."""
    with console.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size).decode(errors="replace").strip()


def start_failed(binary: str, output: str) -> Exception:
    if "executable file not found" in output or ("exec: " in output and "not found" in output):
        return Permanent("tool_missing", f"{binary} cannot be run: {output}")
    if "no space left" in output.lower():
        return Retryable("disk_full", f"{binary} could not start the sandbox: {output}", after_s=30)
    return Retryable("sandbox_start_failed", f"{binary} could not start the sandbox: {output}", after_s=2)


def started_record(pid_file: Path) -> StartedRecord | None:
    """What tells the first process from any later one; None if it has ended already."""
    pid = int(pid_file.read_text())
    ticks = _start_ticks(pid)
    return None if ticks is None else StartedRecord(pid=pid, start_ticks=ticks, boot_id=_boot_id())


def runs(started: StartedRecord) -> bool:
    return started.boot_id == _boot_id() and _start_ticks(started.pid) == started.start_ticks


def _start_ticks(pid: int) -> int | None:
    """Start time in clock ticks after boot; None when there is no such process or it is a zombie."""
    try:
        # The name of the program, in parentheses, may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
