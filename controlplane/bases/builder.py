"""Building a base: the locked packages, installed by mmdebstrap into one reproducible tar.

``cache_dir`` holds ``debs/`` (package files) and ``bases/<name>-<key>/`` (``rootfs.tar``, ``base.json``),
where the key is the recipe's digest: lock, scripts, dpkg's configuration and the options below.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from controlplane.bases.aptsources import host_mirrors
from controlplane.bases.debs import APT_HELPER, fetch_packages
from controlplane.bases.lock import Lock, LockedPackage, read_lock
from controlplane.bases.process import run_tool
from controlplane.bases.repository import write_repository
from controlplane.errors import Permanent, Retryable
from controlplane.ids import check_name

BUILD_TIMEOUT_S = 900.0
_OPTIONS = (
    "--variant=essential",
    "--format=tar",
    '--aptopt=APT::Install-Recommends "false"',
    '--aptopt=APT::Sandbox::User "root"',
    "--verbose",
)
# Files of a recipe's folder beside the lock that the result depends on.
_PARTS = ("prepare", "customize", "dpkg.cfg")
# As root mmdebstrap mounts into the tree it makes. In namespaces of its own, which end with whoever asked, a killed
# build leaves neither processes nor mounts.
_CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"),
)
# Of the installation, between two lines of progress.
_PROGRESS_PERCENT = 20
_NEEDED = {"mmdebstrap": "mmdebstrap", "dpkg-deb": "dpkg", APT_HELPER: "apt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """``held``: the lock's descriptor. The build inherits it, so that nobody builds beside an orphan."""

    folder: Path
    lock: Lock
    paths: dict[LockedPackage, Path]
    home: Path
    recipe: str
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A built base. ``digest``: SHA-256 of the tar, in hex; ``recipe``: of what it was built from."""

    name: str
    digest: str
    recipe: str
    rootfs_tar: Path


def recipe_digest(name: str, images_dir: Path) -> str:
    """Digest of all that a base is built from, in hex, without building it.

    Permanent ``unknown_base``, ``base_lock_missing`` or ``base_lock_invalid``."""
    folder = _folder(name, images_dir)
    digest = hashlib.sha256(read_lock(folder / "lock.json").fingerprint().encode())
    for part in _PARTS:
        digest.update((folder / part).read_bytes())
    digest.update("\n".join(_OPTIONS).encode())
    return digest.hexdigest()


async def ensure_base(
    name: str,
    *,
    cache_dir: Path,
    images_dir: Path,
    progress: Callable[[str], None],
    package_archive: str | None = None,
    apt_dir: Path = Path("/etc/apt"),
) -> Base:
    """The built base, from the cache or made now (half a minute, more where packages must be fetched).

    Any number of processes may ask at once: one builds, the others wait for it. Permanent
    ``base_tools_missing``, ``no_debian_mirror``, ``base_package_gone`` (run images/lock), ``base_build_failed``;
    Retryable ``mirror_unreachable``, ``disk_full``. ``package_archive``: see ``fetch_packages``.
    """
    folder = _folder(name, images_dir).resolve()
    recipe = await asyncio.to_thread(recipe_digest, name, images_dir)
    home = cache_dir / "bases" / f"{name}-{recipe[:24]}"
    if found := _built(name, recipe, home):
        return found
    home.parent.mkdir(parents=True, exist_ok=True)
    async with _locked(home.with_suffix(".lock"), progress) as held:
        if found := _built(name, recipe, home):
            return found
        lock = read_lock(folder / "lock.json")
        await _check_host(lock)
        try:
            mirrors = host_mirrors(apt_dir)
            paths = await fetch_packages(lock, cache_dir / "debs", mirrors, progress, package_archive)
            await _build(_Job(folder=folder, lock=lock, paths=paths, home=home, recipe=recipe, held=held), progress)
        except OSError as error:
            raise Retryable(
                "disk_full",
                f"The base {name} could not be written: {error.strerror}.",
                after_s=60,
                hint=f"A base needs 2 GB below {cache_dir}.",
            ) from error
    built = _built(name, recipe, home)
    assert built is not None
    return built


def _folder(name: str, images_dir: Path) -> Path:
    folder = images_dir / check_name(name, "base")
    if not (folder / "packages.txt").is_file():
        known = sorted(path.parent.name for path in images_dir.glob("*/packages.txt"))
        raise Permanent("unknown_base", f"There is no base {name!r}.", hint=f"Known: {', '.join(known)}.")
    return folder


def _built(name: str, recipe: str, home: Path) -> Base | None:
    try:
        body = json.loads((home / "base.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Base(name=name, digest=body["digest"], recipe=recipe, rootfs_tar=home / "rootfs.tar")


@contextlib.asynccontextmanager
async def _locked(path: Path, progress: Callable[[str], None]) -> AsyncIterator[int]:
    """Holds the file lock ``path``, yields its descriptor; the kernel drops it when all its holders have died."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress("waiting for another process that builds this base")
                told = True
                await asyncio.sleep(0.1)
        yield handle
    finally:
        os.close(handle)


def missing_tools() -> tuple[str, ...]:
    """Debian packages without which no base can be built here."""
    return tuple(package for tool, package in _NEEDED.items() if shutil.which(tool) is None)


async def _check_host(lock: Lock) -> None:
    if missing := missing_tools():
        raise Permanent(
            "base_tools_missing",
            f"A base cannot be built here without {', '.join(missing)}.",
            hint=f"Run: apt-get install -y {' '.join(missing)}",
        )
    _, arch = await run_tool(["dpkg", "--print-architecture"], timeout_s=30)
    if arch.strip() != lock.arch:
        raise Permanent(
            "base_lock_invalid",
            f"The lock is for {lock.arch}; this host is {arch.strip()}.",
            hint="Run images/lock on this host.",
        )


async def _build(job: _Job, progress: Callable[[str], None]) -> None:
    scratch = job.home.with_name(f".{job.home.name}.new")
    await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
    try:
        scratch.mkdir(mode=0o755)
        await write_repository(job.lock.suite, job.paths, scratch / "repository")
        progress(f"installing {len(job.paths)} packages")
        await _mmdebstrap(job, scratch, progress)
        await asyncio.to_thread(_seal, job, scratch)
        progress("the base is built")
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def _mmdebstrap(job: _Job, scratch: Path, progress: Callable[[str], None]) -> None:
    (scratch / "tmp").mkdir(mode=0o755)
    root = os.geteuid() == 0
    argv = [
        *(_CONTAINED if root else ()),
        "mmdebstrap",
        f"--mode={'root' if root else 'unshare'}",
        f"--architectures={job.lock.arch}",
        *_OPTIONS,
        f"--dpkgopt={job.folder / 'dpkg.cfg'}",
        f"--include={','.join(package.name for package in job.paths)}",
        f"--setup-hook={job.folder / 'prepare'}",
        f"--customize-hook={job.folder / 'customize'}",
        job.lock.suite,
        str(scratch / "rootfs.tar"),
        f"deb [trusted=yes] copy:{scratch / 'repository'} ./",
    ]
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
        "TMPDIR": str(scratch / "tmp"),
        "SOURCE_DATE_EPOCH": str(job.lock.source_date_epoch),
        "DEBIAN_FRONTEND": "noninteractive",
    }
    tell = _told(len(job.paths), progress)
    code, output = await run_tool(argv, timeout_s=BUILD_TIMEOUT_S, env=env, pass_fds=(job.held,), on_line=tell)
    if code != 0:
        raise Permanent(
            "base_build_failed",
            f"mmdebstrap could not build the base {job.home.name}; it ended with:\n{output[-3000:].strip()}",
        )


def _told(packages: int, progress: Callable[[str], None]) -> Callable[[str], None]:
    """Takes mmdebstrap's lines and tells some of them as progress."""
    done = 0

    def tell(line: str) -> None:
        nonlocal done
        if line.startswith(("Unpacking ", "Setting up ")):
            done += 1
            now, before = (100 * count // (2 * packages) // _PROGRESS_PERCENT for count in (done, done - 1))
            if now > before:
                progress(f"installed {now * _PROGRESS_PERCENT} %")
        elif line.startswith("I: creating tarball"):
            progress("packing the base")

    return tell


def _seal(job: _Job, scratch: Path) -> None:
    """Names the finished tar by its digest; the rename of its directory is the moment that it exists."""
    tar = scratch / "rootfs.tar"
    with tar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    sealed = job.home.with_name(f".{job.home.name}.sealed")
    shutil.rmtree(sealed, ignore_errors=True)
    sealed.mkdir()
    tar.rename(sealed / "rootfs.tar")
    (sealed / "base.json").write_text(json.dumps({"digest": digest, "recipe": job.recipe}), encoding="utf-8")
    shutil.rmtree(job.home, ignore_errors=True)
    sealed.rename(job.home)
