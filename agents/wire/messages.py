"""Message types of the sandboxd protocol. Times are epoch seconds, sizes bytes, durations seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL_VERSION = 1

ExecReason = Literal["exit", "signal", "timeout", "oom", "cancelled", "lost", "denied"]
ExecState = Literal["starting", "running", "exited", "closed"]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers at a door. ``protocol`` must equal the caller's, else the sandbox is retired."""

    protocol: int
    daemon_version: str
    sandbox_id: str
    boot_id: str
    python: str


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """``ready`` is true once every part (daemon, docker, …) is up. ``parts`` gives each one's state."""

    ready: bool
    parts: dict[str, str]
    uptime_s: float


class Bind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known only at claim time. ``claim_id`` is the session's id; ``now`` corrects a stale clock;
    ``proof`` is kept for the control plane (see ``token.binding_proof``)."""

    claim_id: str
    tenant: str
    proof: str = ""
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    now: float


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    claim_id: str
    first: bool
    bound_at: float


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Which session holds the sandbox; ``claim_id`` None means none so far. Never holds env values.
    ``proof`` as it came with the bind."""

    sandbox_id: str
    claim_id: str | None
    tenant: str | None
    labels: dict[str, str]
    bound_at: float | None
    last_activity_at: float
    running: int
    proof: str = ""


class ExecLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one command, never above the sandbox's; None means the sandbox's own."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    pids: int | None = None


class ExecStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start a command. Exactly one of ``script`` (run by a shell) and ``argv`` is given.

    ``cwd`` is below the workspace root, relative to it or absolute. ``stdin`` None means /dev/null;
    text is written and closed; ``stdin_open`` keeps it open for POST …/stdin.
    """

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
    """Present state of a command. ``exited``: its first process has ended and ``code`` is set;
    ``closed``: its output is at an end as well, and no event follows."""

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
    """One entry of a command's single history; ``seq`` starts at 1 and grows by one.

    Of long output only head and tail are kept. An ``omitted`` event stands for the events dropped between,
    of one stream, and carries the last number of those: only before it may a number be missing. Its
    ``offset`` and ``size`` cover the whole gap, also bytes that a caller who followed live has had.

    stdout/stderr: ``text`` (decoded incrementally, U+FFFD for bad bytes), ``offset`` and ``size`` in bytes
    of that stream. omitted: ``size`` bytes at ``offset`` of ``stream`` were not kept. state: ``state``.
    exited: ``status``. closed: ``status``, always last.
    """

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
    """Events with seq > ``after``. ``complete``: the last event of the history is in this page or before it."""

    events: list[ExecEvent]
    next_after: int
    complete: bool


class ExecList(msgspec.Struct, frozen=True, kw_only=True):
    commands: list[ExecStatus]


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``signal`` name without SIG. KILL ends every process of the command; ``tree`` does so for others too.

    ``cancel`` true: TERM to all, grace, then KILL, and the reason becomes ``cancelled``."""

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
    """An error body: ``code`` is machine-readable (``CWD_NOT_FOUND``, ``already_bound``), ``detail`` for people."""

    code: str
    detail: str
    hint: str = ""
