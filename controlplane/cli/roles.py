"""Commands that run Warmpool itself: up, down, serve, scheduler, worker, egress, settings."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Result = TypeVar("Result")

StateDir = Annotated[Path | None, typer.Option(help="Folder for state, logs, images and sockets.")]
Config = Annotated[Path | None, typer.Option(help="TOML file with settings.", exists=True, dir_okay=False)]
RedisUrl = Annotated[str | None, typer.Option(help="A Redis or Valkey of your own instead of the embedded one.")]
Deployment = Annotated[str | None, typer.Option(help="Name that keeps deployments on one host and store apart.")]
RuntimeKind = Annotated[str | None, typer.Option("--runtime", help="auto, local, docker or simulated.")]
Host = Annotated[str | None, typer.Option(help="Address the API listens on.")]
Port = Annotated[int | None, typer.Option(help="Port the API listens on; 0 takes a free one.")]


def register(app: typer.Typer) -> None:
    for command in (up, down, serve, scheduler, worker, egress, settings):
        app.command(rich_help_panel="Run Warmpool")(command)


def up(
    state_dir: StateDir = None,
    config: Config = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = None,
    runtime: RuntimeKind = None,
    host: Host = None,
    port: Port = None,
    keep_sandboxes: Annotated[bool, typer.Option(help="Leave sandboxes running when it stops.")] = False,
) -> None:
    """Run everything on this machine until Ctrl-C."""
    from controlplane.supervisor.up import up as run_all

    chosen = _settings(state_dir, config, redis_url, deployment, runtime, host, port)
    _run(run_all(chosen, say=lambda text: typer.echo(text, err=True), keep_sandboxes=keep_sandboxes))


def down(state_dir: StateDir = None, config: Config = None, deployment: Deployment = None) -> None:
    """Destroy every sandbox of the deployment, attached ones too. For after an `up --keep-sandboxes`."""
    from controlplane.bootstrap.clearing import destroy_everything

    chosen = _settings(state_dir, config, None, deployment, None, None, None)
    count = _run(destroy_everything(chosen))
    typer.echo(f"removed {count} sandboxes", err=True)


def serve(
    state_dir: StateDir = None,
    config: Config = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = None,
    runtime: RuntimeKind = None,
    host: Host = None,
    port: Port = None,
) -> None:
    """Run the API."""
    from controlplane.bootstrap.api_role import serve

    serve(_settings(state_dir, config, redis_url, deployment, runtime, host, port))


def scheduler(
    state_dir: StateDir = None,
    config: Config = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = None,
    runtime: RuntimeKind = None,
) -> None:
    """Run the scheduler and the reaper; several may run, one leads."""
    from controlplane.bootstrap.scheduler_role import run_scheduler

    run_scheduler(_settings(state_dir, config, redis_url, deployment, runtime, None, None))


def worker(
    state_dir: StateDir = None,
    config: Config = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = None,
    runtime: RuntimeKind = None,
    queues: Annotated[str, typer.Option(help="Queues to serve, first come first.")] = "urgent,retire,refill,build",
) -> None:
    """Run a worker that starts, destroys and builds sandboxes."""
    from controlplane.bootstrap.worker_role import run_worker

    chosen = _settings(state_dir, config, redis_url, deployment, runtime, None, None)
    run_worker(chosen, [name.strip() for name in queues.split(",") if name.strip()])


def egress(state_dir: StateDir = None, config: Config = None, deployment: Deployment = None) -> None:
    """Run the egress gateway of this host."""
    from controlplane.bootstrap.egress_role import exec_egress

    exec_egress(_settings(state_dir, config, None, deployment, None, None, None))


def settings(
    state_dir: StateDir = None,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the settings in force, and where each can be set."""
    import json

    chosen = _settings(state_dir, config, None, None, None, None, None)
    document = chosen.model_dump(mode="json")
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    for name, value in _flatten(document, ""):
        variable = "WARMPOOL_" + name.upper().replace(".", "__")
        typer.echo(f"{name:36} {'' if value is None else value!s:28} {variable}")


def _flatten(document: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in document.items():
        rows += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return rows


def _settings(
    state_dir: Path | None,
    config: Path | None,
    redis_url: str | None,
    deployment: str | None,
    runtime: str | None,
    host: str | None,
    port: int | None,
) -> Any:
    from controlplane.configuration import load_settings

    flags = {
        "state_dir": state_dir.resolve() if state_dir else None,
        "deployment": deployment,
        "store.redis_url": redis_url,
        "runtime.kind": runtime,
        "api.host": host,
        "api.port": port,
    }
    return load_settings(config, {name: value for name, value in flags.items() if value is not None})


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    import asyncio

    return asyncio.run(work)
