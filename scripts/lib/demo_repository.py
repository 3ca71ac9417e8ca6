"""A real project as a git repository: Flask from its source package, committed with fixed dates.

The same package gives the same commit, so a template built from it is not built again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

PROJECT = "flask"
RELEASE = "3.1.2"
SETUP = (
    "python3 -m venv .venv",
    ".venv/bin/pip install --disable-pip-version-check -q -e '.[async]' asgiref==3.9.1 blinker==1.9.0 click==8.2.1 "
    "iniconfig==2.1.0 itsdangerous==2.2.0 jinja2==3.1.6 markupsafe==3.0.2 packaging==25.0 pluggy==1.6.0 "
    "pytest==8.4.1 werkzeug==3.1.3",
)
TEST_COMMAND = ".venv/bin/python -m pytest -q -p no:cacheprovider"

_DATE = "2025-01-01T00:00:00+00:00"


def make(directory: Path) -> Path:
    """The bare repository ``directory/flask.git``, made if missing."""
    bare = directory / f"{PROJECT}.git"
    if (bare / "HEAD").exists():
        return bare
    directory.mkdir(parents=True, exist_ok=True)
    tree = _unpack(_download(directory), directory)
    _git(tree, "init", "-q", "-b", "main")
    _git(tree, "add", "-A", "-f")
    _git(tree, "commit", "-q", "-m", f"{PROJECT} {RELEASE}")
    partial = directory / f".{PROJECT}.git"
    _git(directory, "clone", "-q", "--bare", str(tree), str(partial))
    partial.rename(bare)
    return bare


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", PROJECT, "-d", str(directory), f"{PROJECT}=={RELEASE}"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return next(directory.glob(f"{PROJECT}-{RELEASE}*.tar.gz"))


def _unpack(package: Path, directory: Path) -> Path:
    with tarfile.open(package) as archive:
        archive.extractall(directory, filter="data")
    return directory / f"{PROJECT}-{RELEASE}"


def _git(where: Path, *arguments: str) -> None:
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Demo"), ("EMAIL", "demo@example.invalid"), ("DATE", _DATE))
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *arguments], cwd=where, env=environment, check=True)
