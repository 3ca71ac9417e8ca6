"""Commands and files of a sandbox: the same messages as sandboxd's, handed through by the API."""

from __future__ import annotations

from typing import Literal

import msgspec

ExecReason = Literal["exit", "signal", "timeout", "oom", "cancelled", "lost", "denied"]
ExecState = Literal["starting", "running", "exited", "closed"]


class ExecLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one command, never above the sandbox's; None means the sandbox's own."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    pids: int | None = None


class ExecStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Start a command: exactly one of ``script`` (run by a shell) and ``argv``."""

    id: str
    script: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    stdin: str | None = None
    stdin_open: bool = False
    timeout_s: float | None = None
    grace_s: float = 5.0
    limits: ExecLimits | None = None
    background: bool = False
    user: Literal["agent", "root"] = "agent"


class ExecStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Present state of a command. ``exited``: its first process has ended; ``closed``: so has its output."""

    id: str
    state: ExecState
    last_seq: int
    started_at: float
    pid: int | None = None
    code: int | None = None
    signal: str | None = None
    reason: ExecReason | None = None
    duration_s: float | None = None
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    oom_kills: int = 0
    survivors: list[int] = []
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    cgroup: str = "unavailable"
    error: str | None = None
    background: bool = False
    command: str = ""


class ExecEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a command's history; ``seq`` starts at 1 and has no holes. ``omitted``: ``size`` bytes at
    ``offset`` of ``stream`` were not kept. ``closed`` is always last."""

    seq: int
    kind: Literal["state", "stdout", "stderr", "omitted", "exited", "closed"]
    at: float
    text: str | None = None
    stream: str | None = None
    offset: int | None = None
    size: int | None = None
    state: str | None = None
    status: ExecStatus | None = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events after a number; ``complete``: the last event of the history is in this page or before it."""

    events: list[ExecEvent]
    next_after: int
    complete: bool


class ExecList(msgspec.Struct, frozen=True, kw_only=True):
    commands: list[ExecStatus]


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``signal`` without SIG; ``tree``: every process of the command; ``cancel``: TERM, grace, then KILL."""

    signal: str = "TERM"
    tree: bool = True
    cancel: bool = False


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str
    modified_at: float
    target: str | None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    entries: list[FileInfo]
    truncated: bool = False


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an error body that every Warmpool component sends."""

    code: str
    detail: str
    hint: str = ""
