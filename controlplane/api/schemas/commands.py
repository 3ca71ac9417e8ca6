"""Commands and files of a session. Answers are the types of ``agents.wire`` as JSON; these describe them."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from agents.wire import ExecLimits, ExecStart, SignalRequest
from controlplane.api.schemas.common import In, Out, Size


class ExecLimitsIn(In):
    memory_bytes: Size | None = None
    cpu_cores: float | None = Field(default=None, allow_inf_nan=False)
    pids: int | None = None


class ExecIn(In):
    """Exactly one of `script` (run by a shell) and `argv`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"script": "pytest -q", "timeout_s": 300}, {"argv": ["python3", "-V"]}]},
    )

    id: str | None = Field(
        default=None, description="Names the command; the same id again starts nothing and answers its status."
    )
    script: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    stdin: str | None = None
    stdin_open: bool = False
    # NaN would reach the daemon as null, which means no limit.
    timeout_s: float | None = Field(default=None, allow_inf_nan=False)
    grace_s: float = Field(default=5.0, allow_inf_nan=False)
    limits: ExecLimitsIn | None = None
    background: bool = False
    user: Literal["agent", "root"] = "agent"

    def start(self, exec_id: str) -> ExecStart:
        limits = None if self.limits is None else ExecLimits(**self.limits.model_dump())
        fields = self.model_dump(exclude={"id", "limits"})
        return ExecStart(id=self.id or exec_id, limits=limits, **fields)


class SignalIn(In):
    signal: str = Field(default="TERM", description="Name without SIG.")
    tree: bool = Field(default=True, description="Reach every process of the command, not only its first.")
    cancel: bool = Field(default=False, description="TERM to all, grace, then KILL; the reason becomes `cancelled`.")

    def request(self) -> SignalRequest:
        return SignalRequest(**self.model_dump())


class ExecStatusOut(Out):
    id: str
    state: Literal["starting", "running", "exited", "closed"]
    last_seq: int
    started_at: float
    pid: int | None = None
    code: int | None = None
    signal: str | None = None
    reason: str | None = None
    duration_s: float | None = None
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    oom_kills: int = 0
    survivors: list[int] = Field(default_factory=list)
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    cgroup: str = "unavailable"
    error: str | None = None
    background: bool = False
    command: str = ""


class ExecListOut(Out):
    commands: list[ExecStatusOut]


class ExecEventOut(Out):
    """What does not go with an event's kind is left out of it."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=False)

    seq: int = Field(description="Starts at 1 and has no holes.")
    kind: Literal["state", "stdout", "stderr", "omitted", "exited", "closed"]
    at: float
    text: str | None = None
    stream: str | None = None
    offset: int | None = None
    size: int | None = None
    state: str | None = None
    status: ExecStatusOut | None = None


class EventPageOut(Out):
    events: list[ExecEventOut]
    next_after: int
    complete: bool


class FileInfoOut(Out):
    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str
    modified_at: float
    target: str | None = None


class FileListOut(Out):
    path: str
    entries: list[FileInfoOut]
    truncated: bool = False
