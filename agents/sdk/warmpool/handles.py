"""A command that runs in the background: read, write, signal, wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from warmpool.effects import Call, Flow, params_of, path_of
from warmpool.errors import CommandExitException, CommandTimeoutException
from warmpool.follow import follow
from warmpool.requests import request
from warmpool.result import CommandResult, Heard, Transcript
from warmpool.types import ExecEvent, ExecStatus, SignalRequest
from warmpool.verbs import Async, Sync, verb

if TYPE_CHECKING:
    from warmpool.drivers import AsyncDriver, SyncDriver

SyncCallback = Callable[[str], object]
AsyncCallback = Callable[[str], Awaitable[object] | object]


def signal_command(session: str, command: str, wish: SignalRequest) -> Call[ExecStatus]:
    path = path_of("sessions", session, "exec", command, "signal")
    return Call(method="POST", path=path, answer=ExecStatus, body=wish)


def command_status(session: str, command: str) -> Call[ExecStatus]:
    return Call(method="GET", path=path_of("sessions", session, "exec", command), answer=ExecStatus)


def write_stdin(session: str, command: str, data: str | bytes, *, eof: bool) -> Call[None]:
    """Not repeatable: a second copy of the same bytes would be read as more input."""
    return Call(
        method="POST",
        path=path_of("sessions", session, "exec", command, "stdin"),
        answer=None,
        params=params_of(eof=eof),
        content=data.encode() if isinstance(data, str) else data,
        repeatable=False,
    )


def judged(result: CommandResult, *, check: bool) -> CommandResult:
    """The result; raises CommandExitException for an exit code other than 0 if ``check``."""
    if check and result.exit_code != 0:
        raise (CommandTimeoutException if result.reason == "timeout" else CommandExitException)(result)
    return result


def listener(on_stdout: AsyncCallback | None, on_stderr: AsyncCallback | None) -> Callable[[Any], object]:
    """Gives what is Heard to the callback of its stream, and that callback's answer back."""

    def hear(heard: Heard) -> object:
        if heard.output is None or not heard.output.text:
            return None
        callback = on_stderr if heard.output.stream == "stderr" else on_stdout
        return callback(heard.output.text) if callback is not None else None

    return hear


class _Handle:
    """A command that runs in the background of a session.

    Iterating gives its events from the first kept one, each once; a second iteration goes on where the
    first stopped. ``stdout`` and ``stderr`` are what was read so far.
    """

    def __init__(self, driver: Any, session: str, status: ExecStatus) -> None:
        self._driver = driver
        self._session = session
        self._transcript = Transcript()
        self._disconnected = False
        self.id = status.id
        self.pid = status.pid

    @property
    def stdout(self) -> str:
        return self._transcript.stdout

    @property
    def stderr(self) -> str:
        return self._transcript.stderr

    @property
    def exit_code(self) -> int | None:
        """None until its end was read."""
        return None if self._transcript.status is None else self._transcript.result().exit_code

    def disconnect(self) -> None:
        """Read no more: an iteration ends at its next event. The command runs on; see ``commands.connect``."""
        self._disconnected = True

    @verb
    def kill(self, signal: str = "KILL") -> Flow[bool]:
        """Signal every process of the command (``TERM``, ``INT``, …); False if it had ended before."""
        status = yield from request(signal_command(self._session, self.id, SignalRequest(signal=signal)))
        return status.state in ("starting", "running")

    @verb
    def cancel(self) -> Flow[ExecStatus]:
        """TERM to all its processes, KILL after its grace; its reason becomes ``cancelled``."""
        return (yield from request(signal_command(self._session, self.id, SignalRequest(cancel=True))))

    @verb
    def send_stdin(self, data: str | bytes, *, eof: bool = False) -> Flow[None]:
        """Write to its standard input (started with ``stdin=True``); ``eof`` closes it afterwards."""
        yield from request(write_stdin(self._session, self.id, data, eof=eof))

    @verb
    def close_stdin(self) -> Flow[None]:
        """End its standard input."""
        yield from request(write_stdin(self._session, self.id, b"", eof=True))

    @verb
    def status(self) -> Flow[ExecStatus]:
        """Its state now, as the sandbox says."""
        return (yield from request(command_status(self._session, self.id)))

    def _follow(self, to: str) -> Flow[None]:
        return follow(self._session, self.id, self._transcript, to=to)


class CommandHandle(_Handle, Sync):
    __doc__ = _Handle.__doc__
    _driver: SyncDriver

    def __iter__(self) -> Iterator[ExecEvent]:
        for heard in self._driver.iterate(self._follow("closed")):
            yield heard.event
            if self._disconnected:
                return

    def wait(
        self, on_stdout: SyncCallback | None = None, on_stderr: SyncCallback | None = None, *, check: bool = True
    ) -> CommandResult:
        """Read until it has ended; what was read before is part of the result. Raises CommandExitException
        for an exit code other than 0 unless ``check`` is False."""
        self._driver.run(self._follow("exited"), listener(on_stdout, on_stderr))
        return judged(self._transcript.result(), check=check)


class AsyncCommandHandle(_Handle, Async):
    __doc__ = _Handle.__doc__
    _driver: AsyncDriver

    async def __aiter__(self) -> AsyncIterator[ExecEvent]:
        async for heard in self._driver.iterate(self._follow("closed")):
            yield heard.event
            if self._disconnected:
                return

    async def wait(
        self, on_stdout: AsyncCallback | None = None, on_stderr: AsyncCallback | None = None, *, check: bool = True
    ) -> CommandResult:
        """As ``CommandHandle.wait``; callbacks may be coroutine functions."""
        await self._driver.run(self._follow("exited"), listener(on_stdout, on_stderr))
        return judged(self._transcript.result(), check=check)
