"""Puts the commands together."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import typer

from controlplane.cli.group import RootGroup
from controlplane.cli.operation import ROOT_OPTIONS, ApiKey, Debug, Json, Url

EXIT_CODES = (
    "Exit codes: 0 done, 1 error, 2 wrong usage or input, 3 not found, 4 denied, 5 no capacity or not reachable "
    "now (try again), 124 timed out, 130 interrupted. `run` and `session exec` end with the command's own code, "
    "124 when its time was over, 125 when it could not be run or was lost."
)
# Commands that users meet first stand first in the help.
_MODULES = (
    "running",
    "shell",
    "sessions",
    "copying",
    "declaring",
    "templates",
    "pools",
    "builds",
    "watching",
    "access",
)
# Commands that start Warmpool itself; a client-only installation may lack them.
_LOCAL_MODULES = ("roles", "doctor")


def build_app() -> typer.Typer:
    app = typer.Typer(
        cls=RootGroup,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Sandboxes for coding agents, ready before they are asked for.",
        epilog=EXIT_CODES,
    )
    app.callback()(_root)
    for name in _MODULES:
        _register(app, name)
    for name in _LOCAL_MODULES:
        if importlib.util.find_spec(f"controlplane.cli.{name}") is not None:
            _register(app, name)
    return app


def _root(
    ctx: typer.Context,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    given: dict[str, Any] = {"url": url, "api_key": api_key, "as_json": as_json, "debug": debug}
    ctx.meta[ROOT_OPTIONS] = given


def _register(app: typer.Typer, name: str) -> None:
    importlib.import_module(f"controlplane.cli.{name}").register(app)
