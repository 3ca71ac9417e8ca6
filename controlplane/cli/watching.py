"""``warmpool logs``, ``events``, ``status``, ``sandbox``: what is going on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.operation import Cli, Tenant, operation
from controlplane.cli.output import ago, clean, note, print_fields, print_json, print_json_line, print_table, size

if TYPE_CHECKING:
    from warmpool.types import Event

PANEL = "Look"
sandboxes = typer.Typer(no_args_is_help=True, help="The machines themselves: list, show.")


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(status)
    app.command(rich_help_panel=PANEL)(logs)
    app.command(rich_help_panel=PANEL)(events)
    app.add_typer(sandboxes, name="sandbox", rich_help_panel=PANEL)


@operation
def logs(
    cli: Cli,
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="Its id; see `warmpool session ps SESSION`.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the command has ended.")] = False,
) -> None:
    """Print the output of a command of a session. With -f, ends with its exit code."""
    from controlplane.cli.streaming import told, writer

    handle = cli.api.connect(session).commands.connect(command)
    # Without -f: what there is now, which is what stands before the last event so far.
    last_seq = None if follow else handle.status().last_seq
    if last_seq == 0:
        return
    if not cli.json and follow:
        result = handle.wait(writer("stdout"), writer("stderr"), check=False)
        told(result)
        raise typer.Exit(result.exit_code)
    shown = {"stdout": 0, "stderr": 0}
    for event in handle:
        if cli.json:
            print_json_line(event)
        for stream, text in (("stdout", handle.stdout), ("stderr", handle.stderr)):
            if not cli.json and len(text) > shown[stream]:
                writer(stream)(text[shown[stream] :])
                shown[stream] = len(text)
        if last_seq is not None and event.seq >= last_seq:
            return


@operation
def events(
    cli: Cli,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen.")] = False,
    after: Annotated[
        str | None, typer.Option("--after", help="Id of the last one seen; 0 for the oldest kept.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only kinds that begin so, such as session.")] = None,
    tenant: Tenant = None,
) -> None:
    """Print what changed, who did it and why."""
    if follow:
        for event in cli.api.events.follow(after=after or "$", kind=kind, tenant=tenant):
            print_json_line(event) if cli.json else print(_line(event), flush=True)
        return
    page = cli.api.events.list(after=after, kind=kind, tenant=tenant)
    while page.events or page.next not in ("", after):
        for event in page.events:
            print_json_line(event) if cli.json else print(_line(event))
        after = page.next
        page = cli.api.events.list(after=after, kind=kind, tenant=tenant)


@operation
def status(cli: Cli) -> None:
    """Say whether sessions can be served, and how the pools stand.

    Exit code 5 when they can't.
    """
    ready = cli.api.readiness()
    usable = ready.ready
    pools = cli.api.pools.list() if usable else []
    who = cli.api.whoami() if usable else None
    if cli.json:
        print_json({"url": cli.api.config.url, "ready": usable, "parts": ready.parts, "whoami": who, "pools": pools})
    else:
        print_fields(
            [
                ("api", cli.api.config.url),
                ("ready", usable),
                *((part.name, part.detail or ("ok" if part.ok else "missing")) for part in ready.parts),
                ("tenant", who and who.tenant),
                ("role", who and who.role),
            ]
        )
        if usable:
            rows = [(p.name, p.counts.ready, p.counts.building, p.counts.claimed, p.counts.waiting) for p in pools]
            print_table(("POOL", "READY", "BUILDING", "CLAIMED", "WAITING"), rows, empty="no pools yet")
    if not usable:
        note("Is it running? Start it with: warmpool up")
        raise typer.Exit(5)


@sandboxes.command("ls")
@operation
def list_sandboxes(
    cli: Cli,
    pool: Annotated[str | None, typer.Option("--pool", help="Only of this pool.")] = None,
    tenant: Tenant = None,
) -> None:
    """List sandboxes."""
    found = cli.api.sandboxes.list(pool=pool, tenant=tenant)
    if cli.json:
        print_json({"sandboxes": found})
        return
    rows = [(s.id, s.pool, s.state, s.step, s.session, s.version, s.runtime, ago(s.created_at)) for s in found]
    columns = ("SANDBOX", "POOL", "STATE", "STEP", "SESSION", "VERSION", "RUNTIME", "CREATED")
    print_table(columns, rows, empty="no sandboxes")


@sandboxes.command("show")
@operation
def show_sandbox(cli: Cli, sandbox: Annotated[str, typer.Argument(metavar="SANDBOX")], tenant: Tenant = None) -> None:
    """Show one sandbox."""
    found = cli.api.sandboxes.get(sandbox, tenant=tenant)
    if cli.json:
        print_json(found)
        return
    print_fields(
        [
            ("sandbox", found.id),
            ("pool", found.pool),
            ("state", found.state),
            ("since", ago(found.state_since)),
            ("step", found.step),
            ("reason", found.reason),
            ("session", found.session),
            ("version", found.version),
            ("runtime", found.runtime),
            ("memory", size(found.memory_bytes)),
            ("cpu cores", found.cpu_cores),
            ("pids", found.pids),
            ("disk", size(found.disk_bytes)),
            ("created", ago(found.created_at)),
            ("ready", ago(found.ready_at)),
            ("too old", ago(found.expires_at)),
        ]
    )


def _line(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.at)) + f".{int(event.at % 1 * 1000):03d}"
    data = " ".join(f"{name}={value}" for name, value in event.data.items())
    reason = f"({event.reason})" if event.reason else ""
    by = f"by {event.actor}" if event.actor else ""
    return clean("  ".join(part for part in (at, event.kind, event.subject, reason, data, by) if part))
