"""``warmpool template``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.declaring import DryRun, File, Names, apply_file
from controlplane.cli.operation import Cli, Tenant, operation
from controlplane.cli.output import ago, note, print_fields, print_json, print_table, size

if TYPE_CHECKING:
    from warmpool.types import LineageReport, Template

Name = Annotated[str, typer.Argument(metavar="TEMPLATE")]
templates = typer.Typer(no_args_is_help=True, help="Declared environments: list, show, apply, build, remove.")


def register(app: typer.Typer) -> None:
    app.add_typer(templates, name="template", rich_help_panel="Templates and pools")


@templates.command("ls")
@operation
def list_(cli: Cli, tenant: Tenant = None) -> None:
    """List templates."""
    found = cli.api.templates.list(tenant=tenant)
    if cli.json:
        print_json({"templates": found})
        return
    rows = [(t.name, _repository(t), t.revision, *_build(t.lineages), ago(t.updated_at)) for t in found]
    columns = ("TEMPLATE", "REPOSITORY", "REVISION", "BUILD", "VERSION", "CHANGED")
    print_table(columns, rows, empty="no templates; declare one in a file: warmpool apply -f FILE")


@templates.command("show")
@operation
def show(cli: Cli, name: Name, tenant: Tenant = None) -> None:
    """Show one template, and how its builds stand."""
    found = cli.api.templates.get(name, tenant=tenant)
    if cli.json:
        print_json(found)
        return
    r = found.resources
    print_fields(
        [
            ("template", found.name),
            ("tenant", found.tenant),
            ("revision", found.revision),
            ("base", found.base),
            ("repository", _repository(found)),
            *(("setup", step.run) for step in found.setup),
            ("env", " ".join(sorted(found.env))),
            ("memory", size(r.memory_bytes)),
            ("cpu cores", r.cpu_cores),
            ("pids", r.pids),
            ("disk", size(r.disk_bytes)),
            ("docker", found.docker),
            ("build allow", " ".join(found.build_allow)),
            ("session ttl", found.session_ttl_s),
            ("shared with", " ".join(found.shared_with)),
            ("changed", ago(found.updated_at)),
        ]
    )
    for lineage in found.lineages:
        print_fields(lineage_fields(lineage))


@templates.command("apply")
@operation
def apply(cli: Cli, file: File, names: Names = None, dry_run: DryRun = False, tenant: Tenant = None) -> None:
    """Create or change the templates of a file (its pools are left alone)."""
    apply_file(cli, file, kinds=("templates",), names=names, dry_run=dry_run, tenant=tenant)


@templates.command("rm")
@operation
def remove(cli: Cli, name: Name, tenant: Tenant = None) -> None:
    """Remove a template that no pool uses."""
    cli.api.templates.delete(name, tenant=tenant)
    if cli.json:
        print_json({"removed": name})
    note(f"template {name} is removed")


@templates.command("build")
@operation
def build(
    cli: Cli,
    name: Name,
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit; else the template's own.")] = None,
    tenant: Tenant = None,
) -> None:
    """Forget earlier failures and build now; follow it with `warmpool build logs -f`."""
    started = cli.api.templates.build(name, ref=ref, tenant=tenant)
    if cli.json:
        print_json({"lineage": started})
    note(f"asked for a build of {name}; see: warmpool build ls --template {name}")


def lineage_fields(lineage: LineageReport) -> list[tuple[str, object]]:
    return [
        ("ref", lineage.ref or "the template's own"),
        ("build", lineage.state),
        ("version", lineage.current),
        ("failures", lineage.failures or None),
        ("starts failed", lineage.provision_failures or None),
        ("last error", lineage.last_error),
        ("next attempt", ago(lineage.next_attempt_at)),
    ]


def _repository(template: Template) -> str | None:
    return f"{template.repository.url} @ {template.repository.ref}" if template.repository else None


def _build(lineages: list[LineageReport]) -> tuple[str | None, str | None]:
    """State and version of the template's own ref, else of the first there is."""
    own = next((one for one in lineages if one.ref is None), lineages[0] if lineages else None)
    return (own.state, own.current) if own else (None, None)
