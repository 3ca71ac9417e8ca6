"""``warmpool shell``: a prompt whose lines run in a sandbox, one command each."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import running
from controlplane.cli.operation import Cli, operation

if TYPE_CHECKING:
    from warmpool import Sandbox


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Sessions")(shell)


@operation
def shell(
    cli: Cli,
    target: Annotated[str, typer.Argument(metavar="POOL|SESSION", help="A pool to attach to, or a session's id.")],
    env: running.Env = None,
    wait: running.Wait = 120.0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the session attached.")] = False,
) -> None:
    """A prompt in a sandbox.

    Each line is run as a command of its own. The folder is kept from line to line; variables, functions and
    shell options are not, and programs that need a terminal do not work (a real terminal is to come). Ctrl-C
    cancels the line, Ctrl-D leaves. A session attached here is ended on leaving; one named by its id is not.
    """
    from controlplane.cli.attaching import attached

    if target.startswith("se-") and (sandbox := _session(cli, target)) is not None:
        raise typer.Exit(_prompt(sandbox))
    with attached(cli, target, None, None, env=env, wait=wait, keep=keep) as sandbox:
        code = _prompt(sandbox)
    raise typer.Exit(code)


def _session(cli: Cli, target: str) -> Sandbox | None:
    """The session of that id; None when there is none, since a pool's name may look like one."""
    from warmpool import NotFoundException

    try:
        return cli.api.connect(target)
    except NotFoundException:
        return None


def _prompt(sandbox: Sandbox) -> int:
    """Read and run lines until the input ends or ``exit``. The exit code of the last line."""
    from warmpool import NotFoundException, SandboxException

    folder, code = _Folder(), 0
    if sys.stdin.isatty():
        import readline  # noqa: F401  line editing and history, by being imported
    while True:
        try:
            line = input(f"{folder.path or '~'} $ " if sys.stdin.isatty() else "")
        except EOFError:
            return code
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if line.strip() == "exit":
            return code
        if not line.strip():
            continue
        try:
            code = folder.run(sandbox, line)
        except KeyboardInterrupt:
            print("^C", file=sys.stderr)
            code = 130
        except NotFoundException:
            raise
        except SandboxException as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1


class _Folder:
    """Runs lines in the folder that the last one ended in; ``path`` None is the workspace.

    A line tells where it ended by a mark at the end of its standard error that no output can foretell.
    """

    def __init__(self) -> None:
        self.path: str | None = None

    def run(self, sandbox: Sandbox, line: str) -> int:
        from controlplane.cli.streaming import told, writer

        mark = f"\x1e{secrets.token_hex(12)}:"
        sieve = _Sieve(mark, writer("stderr"))
        result = sandbox.commands.run(
            self._script(line, mark), check=False, on_stdout=writer("stdout"), on_stderr=sieve.write
        )
        self.path = sieve.end() or self.path
        told(result)
        return result.exit_code

    def _script(self, line: str, mark: str) -> str:
        enter = f"cd -- {shlex.quote(self.path)} || exit\n" if self.path else ""
        # The trap also runs when the line itself exits; the mark goes to the standard error of the start.
        tell = f"trap 'printf %s%s {shlex.quote(mark)} \"$PWD\" >&9' EXIT"
        return f"exec 9>&2\n{enter}{tell}\n{line}\n"


class _Sieve:
    """Passes text on, except the mark and what follows it. Text that may be the mark's beginning is held."""

    def __init__(self, mark: str, write: Callable[[str], None]) -> None:
        self._mark = mark
        self._write = write
        self._held = ""

    def write(self, text: str) -> None:
        self._held += text
        start = 0
        while (at := self._held.find(self._mark[0], start)) >= 0:
            rest = self._held[at : at + len(self._mark)]
            if self._mark.startswith(rest):
                break
            start = at + 1
        at = len(self._held) if at < 0 else at
        if at:
            self._write(self._held[:at])
        self._held = self._held[at:]

    def end(self) -> str | None:
        """What followed the mark, None without one (what was held is then passed on)."""
        if self._held.startswith(self._mark):
            return self._held[len(self._mark) :] or None
        if self._held:
            self._write(self._held)
        self._held = ""
        return None
