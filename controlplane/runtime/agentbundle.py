"""The agent bundle: a directory with all that sandboxd needs, mounted read-only into every sandbox.

It holds ``run.py``, the daemon's own packages and its dependencies for CPython 3.11, whatever the
control plane itself runs on, compiled beforehand with hashes that are never checked, so that a
read-only mount and any time stamps start equally fast. Its name is the digest of its inputs: a bundle
is built once, then found, also without a network. Must not import ``agents.sandboxd``.
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import agents
from controlplane.errors import Permanent, Retryable

PYTHON = (3, 11)
OWN_PACKAGES = ("wire", "sandboxd")
PINS = {
    "anyio": "4.16.0",
    "click": "8.5.1",
    "h11": "0.16.0",
    "httptools": "0.9.0",
    "idna": "3.20",
    "msgspec": "0.23.0",
    "starlette": "1.10.0",
    "typing_extensions": "4.16.0",
    "uvicorn": "0.54.0",
}
_GLIBC = ("2014", "_2_17", "_2_28", "_2_34")
_PIP_TIMEOUT_S = 300
_FORMAT = "1"

RUN = '''"""Starts sandboxd from this bundle: ``python3 -I -S run.py CONFIG.json``."""

import sys
from os.path import dirname, join

here = dirname(__file__)
# Only the standard library and this bundle: packages of the sandbox's own are none of the daemon's.
sys.path[:] = [here, join(here, "deps"), *(p for p in sys.path if not p.endswith(("-packages", here)))]

from agents.sandboxd.main import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
'''


async def ensure_agent_bundle(state_dir: Path) -> Path:
    """``<state_dir>/agent-bundle/<digest>/``, built if it is not there. Safe in any number of processes.

    Raises Permanent ``agent_bundle_failed`` or Retryable ``agent_bundle_unavailable`` if dependencies
    are neither installed here nor to be had from the package index.
    """
    return await asyncio.to_thread(_ensure, state_dir)


def bundle_digest() -> str:
    """Of everything that goes in: sources, pins, the start file, the machine."""
    digest = hashlib.sha256(f"{_FORMAT}\n{platform.machine()}\n{sorted(PINS.items())}\n{RUN}".encode())
    for name, path in sorted(_sources()):
        digest.update(f"{name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:20]


def _ensure(state_dir: Path) -> Path:
    home = state_dir / "agent-bundle"
    bundle = home / bundle_digest()
    if bundle.is_dir():
        return bundle
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "lock"):
        if bundle.is_dir():
            return bundle
        for stale in home.glob("tmp-*"):  # of a builder that was killed; the lock is ours, so none is at work
            shutil.rmtree(stale, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix="tmp-", dir=home))
        try:
            _build(building)
            building.rename(bundle)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return bundle


def _build(target: Path) -> None:
    (target / "run.py").write_text(RUN)
    for name, source in _sources():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    deps = target / "deps"
    deps.mkdir()
    if not _copy_installed(deps):
        _install(deps)
    _compile(target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def _sources() -> list[tuple[str, Path]]:
    root = Path(agents.__file__).parent
    found = [root / "__init__.py"]
    for package in OWN_PACKAGES:
        found += (root / package).rglob("*.py")
    return [(f"agents/{path.relative_to(root)}", path) for path in found]


def _copy_installed(deps: Path) -> bool:
    """Copy from this interpreter, if it is the same Python with the same versions: needs no network."""
    if sys.version_info[:2] != PYTHON or sys.implementation.name != "cpython" or sys.platform != "linux":
        return False
    found: list[importlib.metadata.Distribution] = []
    for name, version in PINS.items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return False
        if distribution.version != version or distribution.files is None:
            return False
        found.append(distribution)
    for distribution in found:
        for file in distribution.files or []:
            if file.suffix == ".pyc" or file.parts[0] == ".." or file.parts[0].endswith(".dist-info"):
                continue
            copy = deps / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(distribution.locate_file(file)), copy)
    return True


def _install(deps: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-compile", "--target", str(deps), "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311"]
    for glibc in _GLIBC:
        command += ["--platform", f"manylinux{glibc}_{platform.machine()}"]
    command += [f"{name}=={version}" for name, version in PINS.items()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Retryable("agent_bundle_unavailable", f"pip could not be run: {error}.", after_s=30) from error
    if done.returncode != 0:
        raise Retryable(
            "agent_bundle_unavailable",
            f"The daemon's dependencies could not be installed: {done.stderr.strip()[-800:]}",
            after_s=30,
            hint="They are fetched once; check pip's index and network, or run under Python 3.11.",
        )
    for leftover in [*deps.glob("*.dist-info"), deps / "bin"]:
        shutil.rmtree(leftover, ignore_errors=True)


def _compile(target: Path) -> None:
    """Compile for Python 3.11. Without one on this host the daemon compiles at each start, which is slow."""
    if sys.version_info[:2] == PYTHON:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        if not compileall.compile_dir(target, quiet=2, invalidation_mode=mode, stripdir=str(target)):
            raise Permanent("agent_bundle_failed", f"The daemon's sources in {target} could not be compiled.")
        return
    python = next((p for p in ("python3.11", "/usr/bin/python3") if _is_right_python(p)), None)
    if python is not None:
        arguments = ["-I", "-m", "compileall", "-q", "-s", str(target), "--invalidation-mode", "unchecked-hash"]
        subprocess.run([python, *arguments, str(target)], timeout=_PIP_TIMEOUT_S, check=True, capture_output=True)


def _is_right_python(name: str) -> bool:
    path = shutil.which(name)
    if path is None:
        return False
    question = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([path, "-I", "-c", question], capture_output=True, text=True, check=False)
    return done.stdout.split() == [str(part) for part in PYTHON]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
