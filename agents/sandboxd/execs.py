"""All commands of the sandbox by id: started at most once each, kept for a while, then forgotten.

Ids are the client's. A second start under a known id answers the first's status, so that a caller
whose connection broke can simply ask again. Memory is bounded: of closed commands the oldest lose
first their events, then their record; a forgotten id answers 410 and is never run again.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agents.sandboxd.cgroups import Delegation
from agents.sandboxd.commands import Command
from agents.sandboxd.environment import CommandEnvironment
from agents.sandboxd.problems import ProblemError
from agents.sandboxd.reaper import Reaper
from agents.sandboxd.spawn import Credentials, NotStarted, Plan, launch
from agents.sandboxd.workspace import Tree
from agents.wire import ExecStart, ExecStatus

MAX_RUNNING = 256
KEPT_RECORDS = 1000
KEPT_FORGOTTEN = 10_000
KEPT_HISTORY_BYTES = 12 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_LIMIT = 2**53
_SWEEP_S = 0.05
_REHEARSAL = "(rehearsal)"  # no client can name it: see _ID


class Commands:
    """Starts commands and finds them again. ``credentials`` None: everything runs as the daemon's user."""

    def __init__(
        self,
        *,
        workspace: Tree,
        spool: Path,
        shell: str,
        credentials: Credentials | None,
        environment: CommandEnvironment,
        delegation: Delegation,
        reaper: Reaper,
        session_env: Callable[[], dict[str, str]],
    ) -> None:
        self._workspace = workspace
        self._spool = spool
        self._shell = shell
        self._credentials = credentials
        self._environment = environment
        self._delegation = delegation
        self._reaper = reaper
        self._session_env = session_env
        self._commands: dict[str, Command] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._forgotten: dict[str, None] = {}
        self._untidy: set[Command] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._stopping = False
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="spawn")
        reaper.on_orphan = self._sweep_soon

    @property
    def running(self) -> int:
        return sum(command.running for command in self._commands.values())

    async def start(self, spec: ExecStart) -> ExecStatus:
        """Start ``spec``, or answer for its id. Raises ProblemError, and the id stays free then."""
        check(spec)
        if spec.id in self._forgotten:
            raise _forgotten(spec.id)
        command = self._commands.get(spec.id)
        if command is None:
            self._admit(spec)
            command = self._commands[spec.id] = Command(spec)
            task = asyncio.get_running_loop().create_task(self._launch(command))
            self._starting[spec.id] = task
        if (starting := self._starting.get(spec.id)) is not None:
            await asyncio.shield(starting)
        return command.status()

    async def rehearse(self) -> None:
        """Run a command that does nothing, unless one was started before. A first command takes four times as
        long as a second one (code, pages and groups are touched for the first time); so this is the first."""
        if self._commands or self._stopping:
            return
        command = self._commands[_REHEARSAL] = Command(ExecStart(id=_REHEARSAL, script="true", timeout_s=10.0))
        task = self._starting[_REHEARSAL] = asyncio.get_running_loop().create_task(self._launch(command))
        try:
            await task
            await command.finished()
        finally:
            self._commands.pop(_REHEARSAL, None)

    def get(self, exec_id: str) -> Command:
        """404 for an id never seen, 410 for one that was forgotten."""
        command = self._commands.get(exec_id)
        if command is None:
            if exec_id in self._forgotten:
                raise _forgotten(exec_id)
            raise ProblemError(404, "exec_not_found", f"There is no command {exec_id[:64]!r} in this sandbox.")
        return command

    def list(self) -> list[ExecStatus]:
        return [command.status() for name, command in self._commands.items() if name != _REHEARSAL]

    async def stop_all(self, within_s: float) -> None:
        """End every command and what they left behind; nothing can be started from now on."""
        self._stopping = True
        commands = [command for command in self._commands.values() if command.running or not command.tidy()]
        for command in commands:
            command.stop("cancelled")
        waits = [asyncio.ensure_future(command.finished()) for command in commands]
        if waits:
            _, late = await asyncio.wait(waits, timeout=within_s)
            for wait in late:
                wait.cancel()
        await asyncio.gather(*(command.kill_rest() for command in commands))
        for command in commands:
            command.tidy()

    def _admit(self, spec: ExecStart) -> None:
        self._environment.check(spec.env, "env")
        if self._stopping:
            raise ProblemError(503, "stopping", "The sandbox is being stopped.")
        if self.running >= MAX_RUNNING:
            raise ProblemError(
                429, "too_many_commands", f"{MAX_RUNNING} commands are running in this sandbox.", "End some first."
            )

    async def _launch(self, command: Command) -> None:
        spec = command.spec
        command.on_closed = lambda: self._closed(command)
        try:
            plan = self._plan(spec)
            with self._reaper.starting():
                launched = await asyncio.get_running_loop().run_in_executor(
                    self._threads, launch, plan, self._workspace, self._delegation
                )
                ended = self._reaper.watch(launched.pid)
            if plan.script_path is not None:
                script_path = plan.script_path
                ended.add_done_callback(lambda _: Path(script_path).unlink(missing_ok=True))
            command.begin(launched, ended)
        except NotStarted as failure:
            command.never_began(failure)
        except BaseException:
            del self._commands[spec.id]
            raise
        finally:
            del self._starting[spec.id]

    def _plan(self, spec: ExecStart) -> Plan:
        root = spec.user == "root"
        credentials = self._credentials
        if root and credentials is not None:
            credentials = Credentials(uid=0, gid=0, groups=(0,))
        path = str(self._spool / f"{os.urandom(6).hex()}.sh") if spec.script is not None else None
        return Plan(
            argv=[self._shell, path] if path is not None else list(spec.argv or []),
            env=self._environment.build(self._session_env(), spec.env, root=root),
            cwd=spec.cwd or ".",
            credentials=credentials,
            limits=spec.limits,
            stdin=spec.stdin is not None or spec.stdin_open,
            script=spec.script,
            script_path=path,
        )

    def _closed(self, command: Command) -> None:
        if not command.tidy():
            self._untidy.add(command)
        self._sweep_soon()
        self._evict()

    def _evict(self) -> None:
        closed = [command for command in self._commands.values() if command.closed]
        held = sum(command.history.cost for command in closed)
        for command in closed:
            if held <= KEPT_HISTORY_BYTES or command is closed[-1]:
                break
            held -= command.history.cost
            if command.history.cost:
                command.history.forget()
        for command in closed[: max(0, len(self._commands) - KEPT_RECORDS)]:
            del self._commands[command.spec.id]
            self._forgotten[command.spec.id] = None
        while len(self._forgotten) > KEPT_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def _sweep_soon(self) -> None:
        """Survivors become our orphans and are reaped here: then their group may have become empty."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep_now)

    def _sweep_now(self) -> None:
        self._sweep = None
        for command in self._commands.values():
            if not command.running:
                command.tidy()
        self._untidy = {command for command in self._untidy if not command.tidy()}


def check(spec: ExecStart) -> None:
    """400 for anything about ``spec`` that cannot be carried out whatever the sandbox's state."""
    if not _ID.fullmatch(spec.id):
        raise ProblemError(400, "bad_exec_id", "A command's id is 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'.")
    if (spec.script is None) == (spec.argv is None):
        raise ProblemError(400, "bad_command", "Exactly one of script and argv is given.")
    parts = [spec.script or "", *(spec.argv or []), spec.cwd or ""]
    if spec.argv is not None and (not spec.argv or not spec.argv[0]):
        raise ProblemError(400, "bad_command", "argv needs a program in its first place.")
    if any("\0" in part for part in parts):
        raise ProblemError(400, "bad_command", "A command cannot hold a NUL character.")
    if spec.timeout_s is not None and not 0 < spec.timeout_s <= 30 * 86400:
        raise ProblemError(400, "bad_timeout", "timeout_s is above 0 and at most 30 days.")
    if not 0 <= spec.grace_s <= 300:
        raise ProblemError(400, "bad_timeout", "grace_s is 0 to 300 seconds.")
    limits = spec.limits
    values = (limits.memory_bytes, limits.cpu_cores, limits.pids) if limits is not None else ()
    if any(value is not None and not 0 < value < MAX_LIMIT for value in values):
        raise ProblemError(400, "bad_limits", "A limit is above 0 and below 2^53.")


def _forgotten(exec_id: str) -> ProblemError:
    return ProblemError(410, "exec_forgotten", f"Command {exec_id!r} ended long ago; its record is gone.")
