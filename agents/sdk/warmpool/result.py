"""What a command did: its events gathered into a result. No I/O."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from warmpool.errors import SandboxException
from warmpool.types import ExecEvent, ExecStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The end of a command.

    ``exit_code``: the command's own, or, as shells and ``timeout`` have it: 124 when its time was over,
    128 + N when signal N ended it, 137 when it ran out of memory, 125 when it could not be run or was lost
    with its sandbox. ``reason`` tells these apart (``exit``, ``signal``, ``timeout``, ``oom``,
    ``cancelled``, ``lost``, ``denied``). ``omitted_bytes``: output the sandbox did not keep; a mark stands
    in its place. ``survivors``: processes it started that still run.
    """

    stdout: str
    stderr: str
    exit_code: int
    error: str | None = None
    reason: str = "exit"
    duration_s: float | None = None
    omitted_bytes: int = 0
    survivors: tuple[int, ...] = ()
    status: ExecStatus = field(repr=False)


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a command's output, as it came."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True)
class Heard:
    """An event and, if it is output or a gap in it, what a reader of the output is to see."""

    event: ExecEvent
    output: Output | None


class Transcript:
    """Gathers one command's events, in order. ``after`` is the last number seen: where to resume.

    ``position`` is how many bytes of each stream were accounted for, so that left-out output is counted
    once even when a gap grew while nobody was reading.
    """

    def __init__(self) -> None:
        self.after = 0
        self.closed = False
        self.status: ExecStatus | None = None
        self.omitted_bytes = 0
        self.position: dict[str, int] = {"stdout": 0, "stderr": 0}
        self._text: dict[str, list[str]] = {"stdout": [], "stderr": []}

    @property
    def stdout(self) -> str:
        return "".join(self._text["stdout"])

    @property
    def stderr(self) -> str:
        return "".join(self._text["stderr"])

    def follows(self, event: ExecEvent) -> bool:
        """Whether nothing is missing between what was seen and ``event``. Only left-out output may skip
        numbers, and then says so."""
        if event.kind == "omitted":
            return True
        if event.seq != self.after + 1:
            return False
        return event.offset is None or event.offset <= self.position.get(event.kind, 0)

    def add(self, event: ExecEvent) -> Output | None:
        """Take one event in; what it says, if it is output. Left-out output becomes a mark in its place."""
        self.after = event.seq
        if event.kind in ("exited", "closed"):
            self.status = event.status or self.status
            self.closed = event.kind == "closed"
            return None
        named = event.stream if event.kind == "omitted" else event.kind
        if named not in ("stdout", "stderr"):
            return None
        stream: Literal["stdout", "stderr"] = "stderr" if named == "stderr" else "stdout"
        end = (event.offset or 0) + (event.size or 0)
        text = event.text or ""
        if event.kind == "omitted":
            missing = max(end - self.position[stream], 0)
            self.omitted_bytes += missing
            text = f"\n[... {missing} bytes not kept ...]\n" if missing else ""
        self.position[stream] = max(end, self.position[stream])
        self._text[stream].append(text)
        return Output(stream, text)

    def result(self) -> CommandResult:
        """The result, once ``exited`` was seen. Raises SandboxException before."""
        if self.status is None:
            raise SandboxException("The command has not ended.", code="command_running")
        return CommandResult(
            stdout=self.stdout,
            stderr=self.stderr,
            exit_code=exit_code(self.status),
            error=self.status.error,
            reason=self.status.reason or "exit",
            duration_s=self.status.duration_s,
            omitted_bytes=self.omitted_bytes,
            survivors=tuple(self.status.survivors),
            status=self.status,
        )


def exit_code(status: ExecStatus) -> int:
    """One number for how a command ended; see CommandResult."""
    if status.reason == "timeout":
        return 124
    if status.code is not None and status.code >= 0:
        return status.code
    if status.reason == "oom":
        return 137
    if status.signal:
        number = getattr(signal, "SIG" + status.signal.removeprefix("SIG"), None)
        if number is not None:
            return 128 + int(number)
    return 125
