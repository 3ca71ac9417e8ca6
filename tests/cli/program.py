"""Runs the command as users do (a process), or in this process where only its output matters."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from controlplane.cli.app import build_app

PROGRAM = [sys.executable, "-c", "from controlplane.cli import main; main()"]
_APP = build_app()


def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(_APP, list(arguments), input=stdin, prog_name="warmpool")


def invoke_json(*arguments: str) -> Any:
    """The document that ``--json`` puts on standard output, and nothing else there."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def process(*arguments: str, stdin: str | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout_s)


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
