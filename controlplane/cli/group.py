"""The root command: help in sections, and every failure as a message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from controlplane.cli.operation import ROOT_OPTIONS

OTHER = "More"
BROKEN_PIPE = 128 + 13


class RootGroup(TyperGroup):
    """Groups commands by their ``rich_help_panel``. Plain text: rich takes longer to import than all the rest."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, KeyboardInterrupt, EOFError):
            raise
        except BrokenPipeError:
            # Whoever read the output has gone (`| head`): end as other programs do, without a word.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except Exception as error:
            options = ctx.meta.get(ROOT_OPTIONS, {})
            if options.get("debug"):
                raise
            from controlplane.cli.failures import is_usage_error, report

            if is_usage_error(error):
                raise
            sys.stdout.flush()
            raise typer.Exit(report(error, as_json=bool(options.get("as_json")))) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        width = formatter.width - 6 - max(len(name) for name in self.commands)
        for name, command in self.commands.items():
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                section = panel if isinstance(panel, str) else OTHER
                sections.setdefault(section, []).append((name, command.get_short_help_str(width)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
