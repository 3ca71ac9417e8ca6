"""``warmpool run``: attach, run one command, end the session."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli.operation import Cli, operation

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[POOL] -- COMMAND...",
        help="The pool (left out with --template), then the command: one word or a quoted line is run by a shell, "
        "several words as they are.",
    ),
]
Template = Annotated[str | None, typer.Option("--template", "-t", help="Attach to this template instead of a pool.")]
Ref = Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit; with --template.")]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory such as 2Gi; with --template.")]
Cpus = Annotated[float | None, typer.Option("--cpus", help="CPU cores; with --template.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", metavar="KEY=VALUE", help="For every command.")]
Label = Annotated[list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="To find the session by.")]
Wait = Annotated[float, typer.Option("--wait", help="Longest wait for a sandbox, in seconds.")]
Ttl = Annotated[float | None, typer.Option("--ttl", help="Length of the session's lease, in seconds.")]
Timeout = Annotated[float | None, typer.Option("--timeout", help="End the command after so many seconds (exit 124).")]
Cwd = Annotated[str | None, typer.Option("--cwd", "-w", help="Folder to run in, below the workspace.")]
Interactive = Annotated[bool, typer.Option("--stdin", "-i", help="Send standard input to the command.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the command's own output.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Sessions")(run)


@operation
def run(
    cli: Cli,
    words: Words,
    template: Template = None,
    ref: Ref = None,
    memory: Memory = None,
    cpus: Cpus = None,
    env: Env = None,
    label: Label = None,
    wait: Wait = 120.0,
    ttl: Ttl = None,
    timeout: Timeout = None,
    cwd: Cwd = None,
    stdin: Interactive = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the session attached.")] = False,
    quiet: Quiet = False,
) -> None:
    """Attach a session, run a command in it, end it. Ends with the command's exit code.

    Ctrl-C cancels the command and ends the session.
    """
    from controlplane.cli.attaching import attached, resources_of
    from controlplane.cli.streaming import stream_command

    pool, command = (None, words) if template else (words[0], words[1:])
    if not command:
        raise typer.BadParameter("say the command after --, as in: warmpool run demo -- pytest -q")
    resources = resources_of(memory, cpus)
    with attached(
        cli, pool, template, ref, resources=resources, env=env, label=label, wait=wait, ttl=ttl, keep=keep, quiet=quiet
    ) as sandbox:
        code = stream_command(cli, sandbox, command, cwd=cwd, timeout=timeout, stdin=stdin)
    raise typer.Exit(code)
