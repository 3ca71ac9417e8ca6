"""``warmpool build``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from controlplane.cli.operation import Cli, Tenant, operation
from controlplane.cli.output import ago, note, print_fields, print_json, print_json_line, print_table, short, span

BuildId = Annotated[str, typer.Argument(metavar="BUILD", help="A build's id.")]
builds = typer.Typer(no_args_is_help=True, help="Builds of templates: list, show, read their logs.")


def register(app: typer.Typer) -> None:
    app.add_typer(builds, name="build", rich_help_panel="Templates and pools")


@builds.command("ls")
@operation
def list_(
    cli: Cli,
    template: Annotated[str | None, typer.Option("--template", "-t", help="Only of this template.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 20,
    tenant: Tenant = None,
) -> None:
    """List builds, the newest first."""
    found = cli.api.builds.list(template=template, limit=limit, tenant=tenant)
    if cli.json:
        print_json({"builds": found})
        return
    rows = []
    for b in found:
        step = next((s.name for s in b.steps if s.state in ("running", "failed")), None)
        took = b.ended_at - b.started_at if b.ended_at and b.started_at else None
        rows.append((b.id, b.template, b.state, step, b.attempt, ago(b.created_at), span(took), short(b.error)))
    columns = ("BUILD", "TEMPLATE", "STATE", "STEP", "ATTEMPT", "CREATED", "TOOK", "ERROR")
    print_table(columns, rows, empty="no builds")


@builds.command("show")
@operation
def show(cli: Cli, build: BuildId, tenant: Tenant = None) -> None:
    """Show one build and its steps."""
    found = cli.api.builds.get(build, tenant=tenant)
    if cli.json:
        print_json(found)
        return
    print_fields(
        [
            ("build", found.id),
            ("template", found.template),
            ("state", found.state),
            ("attempt", found.attempt),
            ("commit", found.commit),
            ("version", found.version),
            ("error", found.error),
            ("created", ago(found.created_at)),
            ("ended", ago(found.ended_at)),
        ]
    )
    rows = []
    for s in found.steps:
        took = s.ended_at - s.started_at if s.ended_at and s.started_at else None
        rows.append((s.name, s.state, s.exit_code, span(took), short(s.error), short(s.command)))
    print()
    print_table(("STEP", "STATE", "EXIT", "TOOK", "ERROR", "COMMAND"), rows, empty="no steps yet")


@builds.command("logs")
@operation
def logs(
    cli: Cli,
    build: BuildId,
    step: Annotated[str | None, typer.Option("--step", help="Only this step.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the build has ended.")] = False,
    tenant: Tenant = None,
) -> None:
    """Print a build's log, also of one that failed. Exit code 1 when a followed build failed."""
    last = None
    for chunk in cli.api.builds.logs(build, step=step, follow=follow, tenant=tenant):
        if cli.json:
            print_json_line(chunk)
            continue
        if chunk.step != last and step is None:
            note(f"== {chunk.step}")
        last = chunk.step
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
    if follow:
        found = cli.api.builds.get(build, tenant=tenant)
        note(f"build {build} {found.state}" + (f": {found.error}" if found.error else ""))
        raise typer.Exit(0 if found.state == "succeeded" else 1)
