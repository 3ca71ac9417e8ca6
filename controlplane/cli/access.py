"""``warmpool key``, ``version``: who may call, and what runs here."""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.cli.operation import Cli, Tenant, operation
from controlplane.cli.output import ago, note, print_json, print_table

PANEL = "Look"
keys = typer.Typer(no_args_is_help=True, help="API keys (operators): create, list, revoke.")


def register(app: typer.Typer) -> None:
    app.add_typer(keys, name="key", rich_help_panel="Operate")
    app.command(rich_help_panel=PANEL)(version)


@keys.command("create")
@operation
def create(
    cli: Cli,
    role: Annotated[str, typer.Option("--role", help="platform, ops or browser-intent.")] = "platform",
    remark: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    tenant: Tenant = None,
) -> None:
    """Make a key and print it: this is the only time it can be read."""
    made = cli.api.keys.create(role=role, note=remark, tenant=tenant)
    if cli.json:
        print_json(made)
        return
    note(f"key {made.id} of tenant {made.tenant}, role {made.role}; it can't be shown again:")
    print(made.key)


@keys.command("ls")
@operation
def list_(cli: Cli, tenant: Tenant = None) -> None:
    """List keys; without their secrets, which nobody has."""
    found = cli.api.keys.list(tenant=tenant)
    if cli.json:
        print_json({"keys": found})
        return
    rows = [(k.id, k.tenant, k.role, k.note, ago(k.created_at), ago(k.revoked_at)) for k in found]
    print_table(("KEY", "TENANT", "ROLE", "NOTE", "CREATED", "REVOKED"), rows, empty="no keys")


@keys.command("revoke")
@operation
def revoke(cli: Cli, key: Annotated[str, typer.Argument(metavar="KEY", help="Its id.")]) -> None:
    """Revoke a key: it stops working at once."""
    cli.api.keys.revoke(key)
    if cli.json:
        print_json({"revoked": key})
    note(f"key {key} is revoked")


@operation
def version(cli: Cli) -> None:
    """Print the versions of the command and its client."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from warmpool import __version__

    try:
        own = installed("warmpool")
    except PackageNotFoundError:
        own = "not installed"
    if cli.json:
        print_json({"warmpool": own, "warmpool_sdk": __version__})
    else:
        print(f"warmpool {own}, warmpool-sdk {__version__}")
