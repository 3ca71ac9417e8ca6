"""``warmpool apply -f FILE``: make the templates and pools of a file so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli.operation import Cli, Tenant, operation
from controlplane.cli.output import note, print_json

File = Annotated[str, typer.Option("--file", "-f", help="YAML file with templates and pools; - is standard input.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check the form of the file; send nothing.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these of the file.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Templates and pools")(apply)


@operation
def apply(cli: Cli, file: File, dry_run: DryRun = False, tenant: Tenant = None) -> None:
    """Create or change the templates and pools of a file. What the file does not name is left alone."""
    apply_file(cli, file, kinds=("templates", "pools"), names=None, dry_run=dry_run, tenant=tenant)


def apply_file(
    cli: Cli,
    file: str,
    *,
    kinds: tuple[str, ...],
    names: list[str] | None,
    dry_run: bool = False,
    tenant: str | None = None,
) -> None:
    """Apply what the file declares of ``kinds``, templates first. The whole file is checked before."""
    from controlplane.cli.declaration import read_declaration

    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    declared = read_declaration(text, file)
    bodies: list[tuple[str, Mapping[str, dict[str, Any]]]] = [
        ("templates", declared.templates),
        ("pools", declared.pools),
    ]
    unknown = set(names or ()) - {name for kind, found in bodies if kind in kinds for name in found}
    if unknown:
        raise typer.BadParameter(f"{file} declares no {' or '.join(kinds)} named {', '.join(sorted(unknown))}")
    done = []
    for kind, found in bodies:
        for name, body in found.items():
            if kind in kinds and (names is None or not names or name in names):
                what = "checked" if dry_run else _put(cli, kind, name, body, tenant)
                done.append({"kind": kind.removesuffix("s"), "name": name, "change": what})
                note(f"{kind.removesuffix('s')} {name}: {what}")
    if cli.json:
        print_json({"applied": done})


def _put(cli: Cli, kind: str, name: str, body: dict[str, Any], tenant: str | None) -> str:
    """``created``, ``changed`` or ``unchanged``, as the service answers before and after."""
    if kind == "templates":
        return _change(cli.api.templates.get, cli.api.templates.put, name, body, tenant)
    return _change(cli.api.pools.get, cli.api.pools.put, name, body, tenant)


def _change(
    get: Callable[..., Any], put: Callable[..., Any], name: str, body: dict[str, Any], tenant: str | None
) -> str:
    from warmpool import NotFoundException

    try:
        before = _declared(get(name, tenant=tenant))
    except NotFoundException:
        before = None
    after = _declared(put(name, body, tenant=tenant))
    return "created" if before is None else "unchanged" if before == after else "changed"


# What changes by itself, and is no part of what was declared.
_MOVING = ("counts", "lineage", "lineages", "last_used_at", "current_version", "updated_at", "created_at")


def _declared(record: Any) -> dict[str, Any]:
    import msgspec

    return {name: value for name, value in msgspec.to_builtins(record).items() if name not in _MOVING}
