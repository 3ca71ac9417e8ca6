"""``warmpool session``: attach, list, extend, end sessions, and run commands in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import running
from controlplane.cli.operation import Cli, Tenant, operation
from controlplane.cli.output import ago, note, print_fields, print_json, print_table, short, span

if TYPE_CHECKING:
    from warmpool import Session

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id.")]
sessions = typer.Typer(no_args_is_help=True, help="Attach, list, extend, end sessions; run commands in them.")


def register(app: typer.Typer) -> None:
    app.add_typer(sessions, name="session", rich_help_panel="Sessions")


@sessions.command("ls")
@operation
def list_(
    cli: Cli,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    state: Annotated[str | None, typer.Option("--state", help="Only these states, by commas.")] = None,
    label: running.Label = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 100,
    tenant: Tenant = None,
) -> None:
    """List sessions, the newest first."""
    from controlplane.cli.attaching import pairs

    wanted = state or (None if everything else "waiting,binding,attached,paused,rolling_back")
    found = cli.api.sessions.list(metadata=pairs(label, "--label"), state=wanted, limit=limit, tenant=tenant)
    if cli.json:
        print_json({"sessions": found})
        return
    rows = [(s.id, s.pool, s.state, s.start, s.start_reason, ago(s.created_at), _ends(s), _labels(s)) for s in found]
    columns = ("SESSION", "POOL", "STATE", "START", "REASON", "CREATED", "ENDS", "LABELS")
    print_table(columns, rows, empty="no sessions; attach one with: warmpool session attach POOL")


@sessions.command("show")
@operation
def show(cli: Cli, session: SessionId, tenant: Tenant = None) -> None:
    """Show one session."""
    _print(cli, cli.api.sessions.get(session, tenant=tenant))


@sessions.command("attach")
@operation
def attach_(
    cli: Cli,
    pool: Annotated[str | None, typer.Argument(metavar="[POOL]", help="Left out with --template.")] = None,
    template: running.Template = None,
    ref: running.Ref = None,
    memory: running.Memory = None,
    cpus: running.Cpus = None,
    env: running.Env = None,
    label: running.Label = None,
    wait: running.Wait = 120.0,
    ttl: running.Ttl = None,
) -> None:
    """Attach a session and leave it attached; prints its id."""
    from controlplane.cli.attaching import attach, resources_of

    resources = resources_of(memory, cpus)
    sandbox = attach(cli, pool, template, ref, resources=resources, env=env, label=label, wait=wait, ttl=ttl)
    if cli.json:
        print_json(sandbox.session)
    else:
        print(sandbox.id)


@sessions.command("rm")
@operation
def remove(
    cli: Cli,
    session: Annotated[list[str], typer.Argument(metavar="SESSION...", help="Ids of sessions.")],
    tenant: Tenant = None,
) -> None:
    """End sessions. One that has ended, or is unknown, is ended already."""
    ended = [cli.api.sessions.end(one, tenant=tenant) for one in session]
    if cli.json:
        print_json({"sessions": ended})
    for one in ended:
        note(f"session {one.id} has ended" + (f" ({one.end_reason})" if one.end_reason else ""))


@sessions.command("keepalive")
@operation
def keepalive(
    cli: Cli,
    session: SessionId,
    ttl: Annotated[float | None, typer.Option("--ttl", help="Seconds from now; else the session's own ttl.")] = None,
) -> None:
    """Extend a session's lease."""
    _print(cli, cli.api.sessions.keepalive(session, ttl))


@sessions.command("exec")
@operation
def exec_(
    cli: Cli,
    session: SessionId,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="As for `warmpool run`.")],
    cwd: running.Cwd = None,
    timeout: running.Timeout = None,
    stdin: running.Interactive = False,
) -> None:
    """Run a command in a session. Ends with its exit code; Ctrl-C cancels it."""
    from controlplane.cli.streaming import stream_command

    sandbox = cli.api.connect(session)
    raise typer.Exit(stream_command(cli, sandbox, command, cwd=cwd, timeout=timeout, stdin=stdin))


@sessions.command("ps")
@operation
def commands(cli: Cli, session: SessionId) -> None:
    """List a session's commands."""
    found = cli.api.connect(session).commands.list()
    if cli.json:
        print_json({"commands": found})
        return
    rows = [(c.id, c.state, c.code, c.reason, ago(c.started_at), span(c.duration_s), short(c.command)) for c in found]
    columns = ("COMMAND", "STATE", "EXIT", "REASON", "STARTED", "TOOK", "WHAT")
    print_table(columns, rows, empty="no commands")


def _print(cli: Cli, session: Session) -> None:
    if cli.json:
        print_json(session)
        return
    timings = ", ".join(f"{name} {ms:.2f}" for name, ms in (session.timings_ms or {}).items() if ms is not None)
    place = session.queue
    queue = None if place is None or place.position is None else f"{place.position + 1}, {place.pool_building} building"
    print_fields(
        [
            ("session", session.id),
            ("state", session.state),
            ("pool", session.pool),
            ("template", session.template),
            ("sandbox", session.sandbox),
            ("version", session.version),
            ("start", session.start),
            ("reason", session.start_reason),
            ("queue", queue),
            ("labels", _labels(session)),
            ("created", ago(session.created_at)),
            ("attached", ago(session.attached_at)),
            ("ends", _ends(session)),
            ("ended", ago(session.ended_at)),
            ("end reason", session.end_reason),
            ("end detail", session.end_detail),
            ("ms", timings),
        ]
    )


def _ends(session: Session) -> str | None:
    return None if session.state == "ended" else ago(session.expires_at)


def _labels(session: Session) -> str:
    return " ".join(f"{name}={value}" for name, value in session.labels.items())
