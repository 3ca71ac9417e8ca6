"""One command from start to the end of its output: its states, its limits in time, and its record.

``exited`` and ``closed`` are apart. The first process's end is told at once; processes that it left
behind (survivors) may hold its pipes for as long as they like, and only ``closed`` waits for them. A
command that is ended by us (timeout, cancel) exits only when its whole tree has gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from agents.sandboxd.cgroups import CommandGroup
from agents.sandboxd.output import History
from agents.sandboxd.pipes import InputPipe, OutputPipe
from agents.sandboxd.problems import ProblemError
from agents.sandboxd.reaper import Exit
from agents.sandboxd.spawn import Launched, NotStarted
from agents.wire import ExecStart, ExecStatus, SignalRequest
from agents.wire.messages import ExecReason, ExecState

TIMEOUT_CODE = 124
_HELD_PIPE_S = 1.0
_SHOWN_COMMAND_CHARS = 512
log = logging.getLogger("sandboxd.commands")


class Command:
    """Made in state ``starting``; ``begin`` or ``never_began`` follows."""

    def __init__(self, spec: ExecStart) -> None:
        self.spec = spec
        self.history = History()
        self.started_at = time.time()
        self._started = time.monotonic()
        self._state: ExecState = "starting"
        self._pid: int | None = None
        self._group = CommandGroup({})
        self._group_kind = self._group.kind
        self._ended: ExecStatus | None = None
        self._stop: asyncio.Future[ExecReason] = asyncio.get_running_loop().create_future()
        self._stdin: InputPipe | None = None
        self._outputs: list[OutputPipe] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_closed: Callable[[], None] = lambda: None

    @property
    def running(self) -> bool:
        return self._state in ("starting", "running")

    @property
    def closed(self) -> bool:
        return self._state == "closed"

    def begin(self, launched: Launched, ended: asyncio.Future[Exit]) -> None:
        """The process runs: read its output, feed its input, watch its end."""
        self._pid, self._group = launched.pid, launched.group
        self._group_kind = launched.group.kind
        self._state = "running"
        self.history.note("state", state="running")
        self._outputs = [
            OutputPipe(launched.stdout, "stdout", self.history),
            OutputPipe(launched.stderr, "stderr", self.history),
        ]
        if launched.stdin is not None:
            self._stdin = InputPipe(launched.stdin)
            if self.spec.stdin is not None or not self.spec.stdin_open:
                self._stdin.send((self.spec.stdin or "").encode(), eof=not self.spec.stdin_open)
        self._begin_task(self._live(ended))

    def never_began(self, failure: NotStarted) -> None:
        """The program could not be executed: a finished command with a shell's exit code for that."""
        self._state = "exited"
        self._ended = self._described(code=failure.code, reason="exit", error=failure.text, duration_s=0.0)
        self.history.note("exited", status=self._upcoming())
        self._close()

    def status(self) -> ExecStatus:
        seen = self.history.bytes_seen
        return msgspec.structs.replace(
            self._ended or self._described(),
            state=self._state,
            last_seq=self.history.last_seq,
            stdout_bytes=seen["stdout"],
            stderr_bytes=seen["stderr"],
        )

    def send_stdin(self, data: bytes, *, eof: bool) -> None:
        if self._stdin is None or not self.spec.stdin_open:
            raise ProblemError(409, "stdin_not_open", "The command was started without stdin_open.")
        if self._stdin.closed:
            raise ProblemError(409, "stdin_closed", "The command's standard input is closed.")
        if not self._stdin.room_for(len(data)):
            raise ProblemError(
                409,
                "stdin_full",
                "The command has not read its earlier input yet; nothing was taken.",
                "Send it again when the command has read on.",
            )
        self._stdin.send(data, eof=eof)

    def signal(self, request: SignalRequest) -> None:
        """Signal the command, its tree, or end it for good (``cancel``). No process left is no error."""
        if request.cancel:
            self.stop("cancelled")
            return
        number = signal_number(request.signal)
        if number == signal.SIGKILL:
            self._begin_task(self._end_rest(0.0))
        elif request.tree and self._group.kind != "unavailable":
            self._group.signal(number)
        elif self.running and self._pid is not None:
            (os.killpg if request.tree else os.kill)(self._pid, number)

    def stop(self, reason: ExecReason) -> None:
        """End the whole tree: TERM, grace, KILL. Idempotent; survivors of an ended command go as well."""
        if not self.running:
            self._begin_task(self._end_rest(self.spec.grace_s))
        elif not self._stop.done():
            self._stop.set_result(reason)

    async def finished(self) -> None:
        """Return when every task of this command is over (used at shutdown)."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def kill_rest(self) -> None:
        """KILL whatever of this command is left, without grace."""
        if self._group.pids():
            await self._group.kill(within_s=1.0)

    def tidy(self) -> bool:
        """Remove the control group if nothing is left in it. True once it is gone."""
        return not self.running and self._group.remove()

    async def _live(self, ended: asyncio.Future[Exit]) -> None:
        either: set[asyncio.Future[Any]] = {ended, self._stop}
        await asyncio.wait(either, timeout=self.spec.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        reason: ExecReason | None = None
        if not ended.done():
            reason = self._stop.result() if self._stop.done() else "timeout"
            await self._end_tree(ended)
        gone = await ended
        for output in self._outputs:
            output.drain()
        self._record_end(gone, reason)
        if self._stdin is not None:
            self._stdin.close()
        # Nobody of ours is left to write after a whole tree was ended; what still holds a pipe then
        # has escaped to another namespace, and the caller does not wait for it.
        await asyncio.wait([output.ended for output in self._outputs], timeout=_HELD_PIPE_S if reason else None)
        self._close()

    async def _end_tree(self, ended: asyncio.Future[Exit]) -> None:
        assert self._pid is not None
        if self._group.kind == "unavailable":
            await self._end_session(ended)
        elif not await self._group.end(self.spec.grace_s):
            log.error("processes of %s outlived SIGKILL: %s", self.spec.id, self._group.pids())

    async def _end_session(self, ended: asyncio.Future[Exit]) -> None:
        """Without control groups only the command's process group can be reached; its status says so."""
        assert self._pid is not None
        for number, wait_s in ((signal.SIGTERM, self.spec.grace_s), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._pid, number)
            except ProcessLookupError:
                return
            await asyncio.wait({ended}, timeout=wait_s)

    async def _end_rest(self, grace_s: float) -> None:
        if self._group.kind != "unavailable":
            await (self._group.end(grace_s) if grace_s > 0 else self._group.kill())
        elif self.running and self._pid is not None:
            os.killpg(self._pid, signal.SIGKILL)

    def _record_end(self, gone: Exit, reason: ExecReason | None) -> None:
        usage = self._group.usage()
        killed_by = os.WTERMSIG(gone.wait_status) if os.WIFSIGNALED(gone.wait_status) else None
        code = 128 + killed_by if killed_by else os.waitstatus_to_exitcode(gone.wait_status)
        error = None
        if reason == "timeout":
            code = TIMEOUT_CODE
            error = f"Command timed out after {self.spec.timeout_s:g} s; all its processes were ended."
        elif reason is None and usage.oom_kills and code == 128 + signal.SIGKILL:
            reason, error = "oom", "The command ran out of memory and was ended by the kernel."
        self._state = "exited"
        self._ended = self._described(
            code=code,
            signal=signal.Signals(killed_by).name.removeprefix("SIG") if killed_by else None,
            reason=reason or ("signal" if killed_by else "exit"),
            error=error,
            duration_s=time.monotonic() - self._started,
            cpu_s=gone.cpu_s if usage.cpu_s is None else usage.cpu_s,
            peak_memory_bytes=usage.peak_memory_bytes or gone.max_rss_bytes,
            oom_kills=usage.oom_kills,
            survivors=sorted(self._group.pids()),
        )
        self.history.note("exited", status=self._upcoming())
        self.tidy()

    def _close(self) -> None:
        for output in self._outputs:
            output.close()
        self._state = "closed"
        self.history.note("closed", status=self._upcoming())
        self.on_closed()

    def _upcoming(self) -> ExecStatus:
        """The status as it is once the event that carries it has been noted."""
        return msgspec.structs.replace(self.status(), last_seq=self.history.last_seq + 1)

    def _described(self, **known: Any) -> ExecStatus:
        shown = self.spec.script if self.spec.script is not None else " ".join(self.spec.argv or [])
        return ExecStatus(
            id=self.spec.id,
            state=self._state,
            last_seq=self.history.last_seq,
            started_at=self.started_at,
            pid=self._pid,
            cgroup=self._group_kind,
            background=self.spec.background,
            command=shown[:_SHOWN_COMMAND_CHARS],
            **known,
        )

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_over)

    def _task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("command %s: %r", self.spec.id, error, exc_info=error)


def signal_number(name: str) -> signal.Signals:
    """The signal called ``name`` (without SIG). 400 for a name that is none."""
    try:
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
    except KeyError as error:
        raise ProblemError(400, "bad_signal", f"{name[:32]!r} is not the name of a signal.") from error
