"""Starting a process: everything between "a request was accepted" and "its first instruction runs".

``launch`` blocks and is called on a thread of its own. It uses fork, not posix_spawn: a child has to
enter its control groups before it gives up root, and no file of the sandbox (a shell, setpriv) should
be trusted with that moment.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass, field

from agents.sandboxd.cgroups import CommandGroup, Delegation
from agents.sandboxd.problems import ProblemError, from_os_error
from agents.sandboxd.workspace import OutsideError, Tree
from agents.wire import ExecLimits

# Signals with a handler are reset by exec itself, ignored ones stay ignored. Looked up once: it is slow.
_IGNORED = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
_OOM_SCORE = b"500"  # when memory is short a command goes first, not the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Whom a process runs as; None in a ``Plan`` keeps the daemon's own."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start. ``script_path`` is where ``script`` is put before it is run from there."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    credentials: Credentials | None
    limits: ExecLimits | None
    stdin: bool
    script: str | None = None
    script_path: str | None = None


@dataclass(slots=True)
class Launched:
    """A process that runs, and our ends of its pipes."""

    pid: int
    group: CommandGroup
    stdout: int
    stderr: int
    stdin: int | None


class NotStarted(Exception):
    """The program could not be executed; ``code`` is what a shell would give (126, 127)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(slots=True)
class _Child:
    """The child's descriptors, all close-on-exec but for the copies made of them."""

    stdin: int
    stdout: int
    stderr: int
    failure: int
    cwd: int
    entrances: list[int] = field(default_factory=list)


def launch(plan: Plan, workspace: Tree, delegation: Delegation) -> Launched:
    """Start ``plan``. Raises ProblemError (bad cwd, no room), NotStarted; leaves nothing behind then."""
    with ExitStack() as always, ExitStack() as on_failure:
        cwd = open_cwd(plan.cwd, workspace)
        always.callback(os.close, cwd)
        if plan.script is not None and plan.script_path is not None:
            _write_script(plan.script_path, plan.script, plan.credentials)
            on_failure.callback(os.unlink, plan.script_path)
        group = _make_group(delegation, plan.limits)
        on_failure.callback(group.remove)
        stdout, child_out = _pipe(always, on_failure)
        stderr, child_err = _pipe(always, on_failure)
        failure, child_failure = os.pipe2(os.O_CLOEXEC)
        always.callback(os.close, failure)
        stdin: int | None = None
        if plan.stdin:
            child_in, stdin = os.pipe2(os.O_CLOEXEC)
            on_failure.callback(os.close, stdin)
        else:
            child_in = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        always.callback(os.close, child_in)
        child = _Child(child_in, child_out, child_err, child_failure, cwd)
        for path in group.entrances():
            child.entrances.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
            always.callback(os.close, child.entrances[-1])
        pid = _fork(plan, child)
        report = os.read(failure, 4096)
        if report:
            raise _failure(report, plan)
        on_failure.pop_all()
        return Launched(pid, group, stdout, stderr, stdin)


def open_cwd(path: str, workspace: Tree) -> int:
    """An O_PATH descriptor of the directory, confined to the workspace."""
    try:
        with workspace.find(path) as place:
            fd = os.dup(place.existing())
    except OutsideError as error:
        raise ProblemError(
            400,
            "CWD_OUTSIDE",
            f"cwd {path!r} leads out of {workspace.root}.",
            "Give a directory below the workspace, relative to it or absolute.",
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_cwd(path) from error
    except OSError as error:
        raise from_os_error(error, path) from error
    except ValueError as error:
        raise ProblemError(400, "CWD_NOT_FOUND", f"cwd {path!r} is no path.") from error
    return fd


def _no_cwd(path: str) -> ProblemError:
    return ProblemError(400, "CWD_NOT_FOUND", f"cwd {path!r} is not a directory that exists.")


def _make_group(delegation: Delegation, limits: ExecLimits | None) -> CommandGroup:
    try:
        return delegation.create(limits)
    except OSError as error:
        raise ProblemError(
            503,
            "cannot_start",
            f"No control group could be made for the command: {error}.",
            "The sandbox is short of something; try again, or take another sandbox.",
        ) from error


def _pipe(always: ExitStack, on_failure: ExitStack) -> tuple[int, int]:
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    on_failure.callback(os.close, ours)
    always.callback(os.close, theirs)
    return ours, theirs


def _write_script(path: str, script: str, credentials: Credentials | None) -> None:
    """As a file, since one argument is limited to 128 KiB, and readable by whom it is for only."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
        if credentials is not None:
            os.fchown(fd, credentials.uid, credentials.gid)
        file.write(script if script.endswith("\n") else script + "\n")


def _fork(plan: Plan, child: _Child) -> int:
    # Encoded before the fork, so that the child does as little as it can.
    argv = [os.fsencode(part) for part in plan.argv]
    env = {os.fsencode(name): os.fsencode(value) for name, value in plan.env.items()}
    try:
        pid = os.fork()
    except OSError as error:
        os.close(child.failure)
        raise ProblemError(
            503,
            "cannot_start",
            f"No process could be started: {error.strerror}.",
            "The sandbox is at its limit of processes or memory; end some of them.",
        ) from error
    if pid == 0:
        _become(plan, child, argv, env)
    os.close(child.failure)
    return pid


def _become(plan: Plan, child: _Child, argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Runs in the child and never returns. A failure is told through the pipe: stage, errno."""
    stage = "setup"
    try:
        os.setsid()
        _reset_signals()
        _volunteer_for_oom()
        stage = "cgroup"
        for fd in child.entrances:
            os.write(fd, b"0")
        stage = "setup"
        for number, fd in enumerate((child.stdin, child.stdout, child.stderr)):
            os.dup2(fd, number, inheritable=True)
        os.umask(0o022)
        stage = "user"
        if plan.credentials is not None:
            os.setgroups(plan.credentials.groups)
            os.setresgid(*[plan.credentials.gid] * 3)
            os.setresuid(*[plan.credentials.uid] * 3)
        stage = "cwd"
        os.fchdir(child.cwd)
        stage = "exec"
        _execute(argv, env)
    except OSError as error:
        os.write(child.failure, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """As a shell looks for a program: directories of PATH that cannot be entered hold no program."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure = errno.ENOENT
    for folder in env.get(b"PATH", b"").split(b":"):
        program = (folder or b".") + b"/" + argv[0]
        try:
            os.execve(program, argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) and os.access(program, os.F_OK):
                failure = error.errno or failure
    raise OSError(failure, os.strerror(failure))


def _reset_signals() -> None:
    """The interpreter ignores SIGPIPE, and whoever started the daemon may ignore others."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _volunteer_for_oom() -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, _OOM_SCORE)
        os.close(fd)
    except OSError:
        pass  # no /proc, or already higher: the command still runs


def _failure(report: bytes, plan: Plan) -> Exception:
    stage, _, number_text = report.decode("ascii", "replace").partition(" ")
    number = int(number_text)
    text = os.strerror(number)
    if stage == "exec":
        code = 127 if number == errno.ENOENT else 126
        return NotStarted(code, f"{plan.argv[0]!r} could not be started: {text}.")
    if stage == "cwd":
        return ProblemError(400, "CWD_DENIED", f"The sandbox's user may not enter {plan.cwd!r}: {text}.")
    return ProblemError(503, "cannot_start", f"The command could not be set up ({stage}): {text}.")
