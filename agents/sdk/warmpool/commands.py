"""``sb.commands``: the commands of one session."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from warmpool.effects import Call, Flow, path_of
from warmpool.errors import InvalidArgumentException, SandboxException
from warmpool.follow import follow
from warmpool.handles import (
    AsyncCallback,
    AsyncCommandHandle,
    CommandHandle,
    SyncCallback,
    command_status,
    judged,
    listener,
    signal_command,
    write_stdin,
)
from warmpool.requests import quietly, request
from warmpool.result import CommandResult, Transcript
from warmpool.types import ExecLimits, ExecList, ExecStart, ExecStatus, SignalRequest
from warmpool.verbs import Async, Sync, verb

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from warmpool.drivers import AsyncDriver, SyncDriver

Command = str | Sequence[str]
User = Literal["agent", "root"]
Statuses = list[ExecStatus]


class How(TypedDict, total=False):
    """How a command is run; see ``exec_start``."""

    cwd: str | None
    envs: Mapping[str, str] | None
    timeout: float | None
    user: User
    stdin: str | bool | None
    limits: ExecLimits | None
    grace: float


def exec_start(
    cmd: Command,
    *,
    cwd: str | None = None,
    envs: Mapping[str, str] | None = None,
    timeout: float | None = None,
    user: User = "agent",
    stdin: str | bool | None = None,
    limits: ExecLimits | None = None,
    grace: float = 5.0,
    background: bool = False,
) -> ExecStart:
    """The message that starts ``cmd``. The id is made here, so that starting it twice starts it once.

    ``cmd``: text is run by a shell, a sequence of words as it is. ``timeout``: seconds after which the whole
    process tree is ended, None for no limit but the session's. ``stdin``: text to read, True to keep it
    open for ``send_stdin``, None for /dev/null. ``grace``: seconds between TERM and KILL. Raises
    InvalidArgumentException.
    """
    words = [cmd] if isinstance(cmd, str) else list(cmd)
    if not words or not all(isinstance(word, str) for word in words) or not words[0]:
        raise InvalidArgumentException("A command is text or a list of words.", code="invalid_command")
    return ExecStart(
        id=f"cmd-{secrets.token_hex(8)}",
        script=cmd if isinstance(cmd, str) else None,
        argv=None if isinstance(cmd, str) else words,
        cwd=cwd,
        env=dict(envs or {}),
        stdin=stdin if isinstance(stdin, str) else None,
        stdin_open=stdin is True,
        timeout_s=timeout,
        grace_s=grace,
        limits=limits,
        background=background,
        user=user,
    )


def start(session: str, spec: ExecStart) -> Flow[ExecStatus]:
    call = Call(method="POST", path=path_of("sessions", session, "exec"), answer=ExecStatus, body=spec)
    return (yield from request(call))


def foreground(session: str, spec: ExecStart, transcript: Transcript) -> Flow[CommandResult]:
    """Start and read to the end. When the caller is interrupted, or its callback fails, the command is
    cancelled: nobody else knows of it."""
    try:
        yield from start(session, spec)
        yield from follow(session, spec.id, transcript, to="exited")
    except BaseException as error:
        if not isinstance(error, (SandboxException, GeneratorExit)):
            yield from quietly(signal_command(session, spec.id, SignalRequest(cancel=True)))
        raise
    return transcript.result()


class _Commands:
    def __init__(self, driver: Any, session: str) -> None:
        self._driver = driver
        self._session = session

    @verb
    def list(self) -> Flow[Statuses]:
        """All commands the sandbox remembers, running or ended."""
        call = Call(method="GET", path=path_of("sessions", self._session, "exec"), answer=ExecList)
        return (yield from request(call)).commands

    @verb
    def kill(self, id: str) -> Flow[bool]:
        """Kill every process of a command; False if it had ended before."""
        status = yield from request(signal_command(self._session, id, SignalRequest(signal="KILL")))
        return status.state in ("starting", "running")

    @verb
    def send_stdin(self, id: str, data: str | bytes, *, eof: bool = False) -> Flow[None]:
        """Write to the standard input of a command started with ``stdin=True``."""
        yield from request(write_stdin(self._session, id, data, eof=eof))


class Commands(_Commands, Sync):
    """The commands of one session."""

    _driver: SyncDriver

    @overload
    def run(
        self,
        cmd: Command,
        *,
        background: Literal[False] = False,
        on_stdout: SyncCallback | None = None,
        on_stderr: SyncCallback | None = None,
        check: bool = True,
        **how: Unpack[How],
    ) -> CommandResult: ...
    @overload
    def run(self, cmd: Command, *, background: Literal[True], **how: Unpack[How]) -> CommandHandle: ...
    def run(
        self,
        cmd: Command,
        *,
        background: bool = False,
        on_stdout: SyncCallback | None = None,
        on_stderr: SyncCallback | None = None,
        check: bool = True,
        **how: Unpack[How],
    ) -> CommandResult | CommandHandle:
        """Run a command to its end, or start it with ``background=True``. ``how``: see ``exec_start``.

        Output is given to the callbacks as it comes, and is whole in the result. Raises
        CommandExitException (with the result) for an exit code other than 0, unless ``check`` is False;
        StreamBroken when the output could not be read to its end.
        """
        spec = exec_start(cmd, background=background, **how)
        if background:
            return CommandHandle(self._driver, self._session, self._driver.run(start(self._session, spec)))
        flow = foreground(self._session, spec, Transcript())
        return judged(self._driver.run(flow, listener(on_stdout, on_stderr)), check=check)

    def connect(self, id: str) -> CommandHandle:
        """A handle on a command started earlier, by anyone. Raises NotFoundException."""
        status = self._driver.run(request(command_status(self._session, id)))
        return CommandHandle(self._driver, self._session, status)


class AsyncCommands(_Commands, Async):
    """The commands of one session."""

    _driver: AsyncDriver

    @overload
    async def run(
        self,
        cmd: Command,
        *,
        background: Literal[False] = False,
        on_stdout: AsyncCallback | None = None,
        on_stderr: AsyncCallback | None = None,
        check: bool = True,
        **how: Unpack[How],
    ) -> CommandResult: ...
    @overload
    async def run(self, cmd: Command, *, background: Literal[True], **how: Unpack[How]) -> AsyncCommandHandle: ...
    async def run(
        self,
        cmd: Command,
        *,
        background: bool = False,
        on_stdout: AsyncCallback | None = None,
        on_stderr: AsyncCallback | None = None,
        check: bool = True,
        **how: Unpack[How],
    ) -> CommandResult | AsyncCommandHandle:
        """As ``Commands.run``; callbacks may be coroutine functions."""
        spec = exec_start(cmd, background=background, **how)
        if background:
            return AsyncCommandHandle(self._driver, self._session, await self._driver.run(start(self._session, spec)))
        flow = foreground(self._session, spec, Transcript())
        return judged(await self._driver.run(flow, listener(on_stdout, on_stderr)), check=check)

    async def connect(self, id: str) -> AsyncCommandHandle:
        """As ``Commands.connect``."""
        status = await self._driver.run(request(command_status(self._session, id)))
        return AsyncCommandHandle(self._driver, self._session, status)
