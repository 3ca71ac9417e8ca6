"""Imports the git server of ``scripts/``, which is not a package, and makes repositories for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gitserver.py"

_spec = importlib.util.spec_from_file_location("gitserver_script", SCRIPT)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
GitServer = _module.GitServer

_FIXED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.com",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.com",
}


def git(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Standard output of a git command. Raises CalledProcessError, with ``stderr`` as text."""
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    done = subprocess.run(
        ["git", *arguments],
        env={**environment, **_FIXED, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def make_repository(path: Path) -> str:
    """A repository with one commit on ``main``, which it gives the id of."""
    path.mkdir(parents=True)
    git("init", "-q", "-b", "main", cwd=path)
    (path / "README").write_text("hello\n")
    git("add", "README", cwd=path)
    git("commit", "-q", "-m", "First", cwd=path)
    return git("rev-parse", "HEAD", cwd=path)
