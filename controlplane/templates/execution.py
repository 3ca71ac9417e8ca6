"""Running one command in the build sandbox, its output kept as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agents.wire import ExecStart, ExecStatus
from controlplane.agentclient.port import AgentClient, Door
from controlplane.errors import Permanent, Retryable
from controlplane.retrying import retried

# Beyond the command's own limit, which sandboxd enforces: for its grace period and for reading the end.
_OVERTIME_S = 30.0
_LAST_LINES = 12
_LAST_CHARS = 2000

Write = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """``stdout`` is whole only below 1 MiB, else its start; ``last``: the last lines of all output."""

    status: ExecStatus
    stdout: str
    last: str


class CommandFailed(Permanent):
    """The command ended, but not well."""

    def __init__(self, code: str, message: str, *, exit_code: int | None, hint: str = "") -> None:
        super().__init__(code, message, hint=hint)
        self.exit_code = exit_code


async def run_logged(
    agents: AgentClient, door: Door, start: ExecStart, write: Write, *, within_s: float
) -> CommandResult:
    """Start the command, or attach again to the one of this id, and follow it to its end.

    A broken stream is taken up where it broke. Retryable ``step_timeout`` when it outlives ``within_s``."""
    status = await retried(lambda: agents.exec_start(door, None, start), within_s=30.0, what="Starting a command")
    stdout: list[str] = []
    kept, after = 0, 0
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        async with asyncio.timeout(within_s + _OVERTIME_S):
            while status.state != "closed" or after < status.last_seq:
                try:
                    async for event in agents.exec_stream(door, None, start.id, after):
                        after = event.seq
                        if event.status is not None:
                            status = event.status
                        text = event.text
                        if event.kind == "omitted":
                            text = f"\n[{event.size} bytes of {event.stream} were not kept]\n"
                        if not text:
                            continue
                        await write(text)
                        last.extend(text.splitlines())
                        if event.kind == "stdout" and kept < 1 << 20:
                            stdout.append(text)
                            kept += len(text)
                    status = await agents.exec_status(door, None, start.id)
                except Retryable:
                    await asyncio.sleep(0.2)
    except TimeoutError as error:
        raise Retryable("step_timeout", f"The command did not end within {within_s:g} s.") from error
    return CommandResult(status=status, stdout="".join(stdout), last="\n".join(last)[-_LAST_CHARS:])


def check_result(result: CommandResult, what: str, code: str, timeout_s: float, *, hint: str = "") -> None:
    """Raise CommandFailed unless the command ended with 0."""
    status = result.status
    if status.reason == "timeout":
        raise CommandFailed(
            f"{code}_timeout",
            f"{what} did not end within {timeout_s:g} s and was stopped. Its last output:\n{result.last}",
            exit_code=status.code,
            hint="Raise its timeout_s, or see why it hangs.",
        )
    if status.code != 0 or status.reason not in (None, "exit"):
        how = f"ended with exit code {status.code}"
        if status.reason == "oom":
            how = "ran out of memory"
        elif status.signal is not None:
            how = f"was ended by signal {status.signal}"
        elif status.error:
            how = f"could not be started: {status.error}"
        raise CommandFailed(f"{code}_failed", f"{what} {how}:\n{result.last}", exit_code=status.code, hint=hint)
