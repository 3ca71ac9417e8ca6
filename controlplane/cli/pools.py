"""``warmpool pool``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli import running
from controlplane.cli.declaring import DryRun, apply_file
from controlplane.cli.operation import Cli, Tenant, operation
from controlplane.cli.output import ago, note, print_fields, print_json, print_table, size
from controlplane.cli.templates import lineage_fields

if TYPE_CHECKING:
    from warmpool.types import Pool

Name = Annotated[str, typer.Argument(metavar="POOL")]
MinReady = Annotated[int | None, typer.Option("--min", min=0, help="Ready sandboxes to keep.")]
MaxTotal = Annotated[int | None, typer.Option("--max", min=0, help="Most sandboxes, attached and starting included.")]
pools = typer.Typer(no_args_is_help=True, help="Sandboxes kept ready: list, apply, scale, explain.")


def register(app: typer.Typer) -> None:
    app.add_typer(pools, name="pool", rich_help_panel="Templates and pools")


@pools.command("ls")
@operation
def list_(cli: Cli, tenant: Tenant = None) -> None:
    """List pools."""
    found = cli.api.pools.list(tenant=tenant)
    if cli.json:
        print_json({"pools": found})
        return
    rows = []
    for p in found:
        c = p.counts
        kept = f"{p.pinned_ready} pinned" if p.pinned_ready is not None else p.min_ready
        state = "deleting" if p.deleting else p.lineage.state if p.lineage else None
        rows.append(
            (
                p.name,
                p.template,
                c.ready,
                c.building,
                c.claimed,
                c.waiting,
                kept,
                p.max_total,
                state,
                ago(p.last_used_at),
            )
        )
    columns = ("POOL", "TEMPLATE", "READY", "BUILDING", "CLAIMED", "WAITING", "KEEP", "MAX", "VERSION", "USED")
    print_table(columns, rows, empty="no pools; declare one in a file: warmpool apply -f FILE")


@pools.command("show")
@operation
def show(cli: Cli, name: Name, tenant: Tenant = None) -> None:
    """Show one pool."""
    _print(cli, cli.api.pools.get(name, tenant=tenant))


@pools.command("apply")
@operation
def apply(
    cli: Cli,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[POOL]...", help="One name; with -f, those of the file.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="YAML file; - is standard input.")] = None,
    template: Annotated[str | None, typer.Option("--template", "-t", help="Template of the pool.")] = None,
    ref: Annotated[str | None, typer.Option("--ref", help="Branch, tag or commit; else the template's own.")] = None,
    memory: running.Memory = None,
    cpus: running.Cpus = None,
    min_ready: MinReady = None,
    max_total: MaxTotal = None,
    dry_run: DryRun = False,
    tenant: Tenant = None,
) -> None:
    """Create or change a pool by options, or the pools of a file (its templates are left alone)."""
    from controlplane.cli.attaching import resources_of

    options = (template, ref, memory, cpus, min_ready, max_total)
    if file is not None:
        if any(option is not None for option in options):
            raise typer.BadParameter("with -f the file says what the pools are; leave the other options out")
        apply_file(cli, file, kinds=("pools",), names=names, dry_run=dry_run, tenant=tenant)
        return
    if names is None or len(names) != 1 or template is None or dry_run:
        raise typer.BadParameter("say one POOL and its --template, or a file with -f")
    wanted = {
        "template": template,
        "ref": ref,
        "resources": resources_of(memory, cpus),
        "min_ready": min_ready,
        "max_total": max_total,
    }
    body = {key: value for key, value in wanted.items() if value is not None}
    _print(cli, cli.api.pools.put(names[0], body, tenant=tenant))


@pools.command("scale")
@operation
def scale(cli: Cli, name: Name, min_ready: MinReady = None, max_total: MaxTotal = None, tenant: Tenant = None) -> None:
    """Change how many sandboxes a pool keeps ready, and how many it may have."""
    if min_ready is None and max_total is None:
        raise typer.BadParameter("say --min, --max or both")
    now = cli.api.pools.get(name, tenant=tenant)
    body = {
        "template": now.template,
        "ref": now.ref,
        "resources": now.resources,
        "min_ready": now.min_ready if min_ready is None else min_ready,
        "max_total": now.max_total if max_total is None else max_total,
    }
    _print(cli, cli.api.pools.put(name, body, tenant=tenant))


@pools.command("pin")
@operation
def pin(
    cli: Cli,
    name: Name,
    ready: Annotated[int, typer.Argument(metavar="N", min=0, help="Ready sandboxes to keep, whatever else says.")],
    tenant: Tenant = None,
) -> None:
    """Fix the number of ready sandboxes by hand, until `unpin`."""
    _print(cli, cli.api.pools.pin(name, ready, tenant=tenant))


@pools.command("unpin")
@operation
def unpin(cli: Cli, name: Name, tenant: Tenant = None) -> None:
    """Let minimum and demand decide again."""
    _print(cli, cli.api.pools.pin(name, None, tenant=tenant))


@pools.command("rm")
@operation
def remove(cli: Cli, name: Name, tenant: Tenant = None) -> None:
    """Drain a pool to nothing and remove it; attached sessions live on."""
    cli.api.pools.delete(name, tenant=tenant)
    if cli.json:
        print_json({"removed": name})
    note(f"pool {name} is being removed")


@pools.command("explain")
@operation
def explain(cli: Cli, name: Name, tenant: Tenant = None) -> None:
    """Say why a pool is sized as it is."""
    found = cli.api.pools.explain(name, tenant=tenant)
    if cli.json:
        print_json(found)
        return
    decision = found.decision
    if decision is None:
        note("the scheduler has not looked at this pool yet")
    else:
        print_fields(
            [
                ("pool", name),
                ("keeps ready", f"{decision.target_ready} (bound by {decision.bound_by})"),
                (
                    "has",
                    f"{decision.ready} ready, {decision.building} building, {decision.claimed} claimed, "
                    f"{decision.draining} draining",
                ),
                ("waiting", decision.waiting),
                *(("because", reason) for reason in decision.reasons),
                ("decided", ago(found.at)),
            ]
        )
    if found.lineage is not None:
        print_fields(lineage_fields(found.lineage))


def _print(cli: Cli, pool: Pool) -> None:
    if cli.json:
        print_json(pool)
        return
    c, r = pool.counts, pool.resources
    shown: list[tuple[str, Any]] = [
        ("pool", pool.name),
        ("template", pool.template),
        ("ref", pool.ref),
        ("version", pool.current_version),
        ("state", "deleting" if pool.deleting else None),
        ("ready", c.ready),
        ("building", c.building),
        ("claimed", c.claimed),
        ("draining", c.draining),
        ("failed", c.failed or None),
        ("waiting", c.waiting),
        ("min ready", pool.min_ready),
        ("max total", pool.max_total),
        ("pinned", pool.pinned_ready),
        ("memory", size(r.memory_bytes)),
        ("cpu cores", r.cpu_cores),
        ("pids", r.pids),
        ("disk", size(r.disk_bytes)),
        ("used", ago(pool.last_used_at)),
    ]
    if pool.lineage is not None:
        shown += [row for row in lineage_fields(pool.lineage) if row[0] not in ("ref", "version")]
    print_fields(shown)
