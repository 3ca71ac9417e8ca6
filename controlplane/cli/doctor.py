"""``warmpool doctor``: what this machine can run, what each runtime holds, what is missing and how to fix it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from controlplane.runtime.port import Capabilities


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Run Warmpool")(doctor)


def doctor(
    state_dir: Annotated[Path | None, typer.Option(help="State folder to check.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.", exists=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine can run and hold. Exit code 1 when no runtime works."""
    import asyncio

    from controlplane.bootstrap.operator import examine
    from controlplane.configuration import load_settings

    flags = {"state_dir": state_dir.resolve()} if state_dir else {}
    settings = load_settings(config, flags)
    found = asyncio.run(examine(settings))
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        for report in found.runtimes:
            _print(report, found.chosen == report.runtime)
        if found.missing_packages:
            typer.echo("bases cannot be built")
            typer.echo(f"  fix: apt-get install -y {' '.join(found.missing_packages)}")
        for note in found.notes:
            typer.echo(f"builds: {note}")
        if found.chosen is None:
            typer.echo("No runtime works here yet: run one of the commands above, then `warmpool doctor` again.")
    raise typer.Exit(0 if found.chosen else 1)


def _print(report: Capabilities, chosen: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    state = "[green]works[/]" if report.usable else "[red]does not work[/]"
    note = " (taken by --runtime auto)" if chosen else ""
    console.print(f"[bold]{report.runtime}[/] {report.version} {state}{note}")
    if not report.usable:
        console.print(f"  {report.reason}", markup=False)
        if report.fix:
            console.print(f"  fix: {report.fix}", markup=False)
    if not report.limits and not report.isolation:
        return
    table = Table(box=None, pad_edge=True, header_style="dim")
    for column in ("", "", "held", "how, or what would fix it"):
        table.add_column(column)
    for group, rows in (("limit", report.limits), ("wall", report.isolation)):
        for row in rows:
            detail = row.how if row.held else f"{row.how} {row.fix}".strip()
            table.add_row(group, row.name, "yes" if row.held else "no", detail)
    console.print(table)
