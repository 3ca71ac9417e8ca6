"""Fetching exactly the locked package files, with apt's own downloader."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from controlplane.bases.aptsources import Mirrors, no_mirror
from controlplane.bases.lock import Lock, LockedPackage
from controlplane.bases.process import run_tool
from controlplane.errors import Permanent, Retryable

APT_HELPER = "/usr/lib/apt/apt-helper"
_AT_ONCE = 4
# What one downloader fetches before progress is told.
_BATCH_BYTES = 16_000_000
_FETCH_TIMEOUT_S = 600.0


async def fetch_packages(
    lock: Lock,
    debs_dir: Path,
    mirrors: Mirrors,
    progress: Callable[[str], None],
    package_archive: str | None = None,
) -> dict[LockedPackage, Path]:
    """Every locked package as a file of ``debs_dir`` with the locked checksum; no network when all are there.

    apt's own downloader is used, so that the host's proxies, certificates and credentials apply. Each mirror
    is tried in turn, then ``package_archive``: an address with ``{archive}`` (debian or debian-security) and
    ``{moment}`` in it. Raises Permanent ``no_debian_mirror``, Permanent ``base_package_gone`` naming the
    packages that none has, Retryable ``mirror_unreachable`` when nothing at all could be fetched.
    """
    debs_dir.mkdir(parents=True, exist_ok=True)
    paths = {package: debs_dir / package.file_name for package in lock.packages}
    missing = await asyncio.to_thread(_unverified, paths)
    wanted = len(missing)
    places = {package: list(_places(package, lock, mirrors, package_archive)) for package in missing}
    if homeless := {package.archive for package, found in places.items() if not found}:
        raise no_mirror("Debian's security archive" if homeless == {"security"} else "Debian")
    for attempt in range(max(map(len, places.values()), default=0)):
        here = [(places[package][attempt], paths[package], package) for package in missing if places[package][attempt:]]
        if here:
            await _fetch_all(here, progress)
            missing = await asyncio.to_thread(_unverified, {package: paths[package] for package in missing})
    if missing:
        everything = len(missing) == wanted and wanted > 1
        raise _unreachable(missing) if everything else _gone(missing, archived=package_archive is not None)
    return paths


def _places(package: LockedPackage, lock: Lock, mirrors: Mirrors, package_archive: str | None) -> Iterator[str]:
    """Where the file may be, the most wanted first."""
    for root in mirrors.of(package.archive):
        yield f"{root}/{package.path}"
    if package_archive is not None:
        archive = "debian-security" if package.archive == "security" else "debian"
        root = package_archive.replace("{archive}", archive).replace("{moment}", lock.snapshot)
        yield f"{root.rstrip('/')}/{package.path}"


_Wanted = tuple[str, Path, LockedPackage]


async def _fetch_all(wanted: list[_Wanted], progress: Callable[[str], None]) -> None:
    """Several downloads at once; what fails is seen afterwards, by its absence."""
    size = sum(package.size for _, _, package in wanted)
    progress(f"fetching {len(wanted)} packages, {size / 1e6:.0f} MB")
    limit = asyncio.Semaphore(_AT_ONCE)
    done = 0

    async def fetch(batch: Sequence[_Wanted]) -> None:
        nonlocal done
        async with limit:
            fetched = await _fetch_batch(batch)
        done += fetched
        if size > _BATCH_BYTES:
            progress(f"fetched {done / 1e6:.0f} of {size / 1e6:.0f} MB")

    await asyncio.gather(*(fetch(batch) for batch in _batches(wanted)))


def _batches(wanted: list[_Wanted]) -> Iterator[list[_Wanted]]:
    """At least as many as are fetched at once, where there are that many files."""
    total = sum(package.size for _, _, package in wanted)
    bound = min(_BATCH_BYTES, total // _AT_ONCE)
    batch: list[_Wanted] = []
    size = 0
    for each in wanted:
        batch.append(each)
        size += each[2].size
        if size >= bound:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _fetch_batch(batch: Sequence[_Wanted]) -> int:
    """Bytes fetched."""
    fetched_bytes = 0
    with tempfile.TemporaryDirectory(dir=batch[0][1].parent, prefix=".fetch-") as scratch:
        argv = [APT_HELPER, "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2", "download-file"]
        for uri, _, package in batch:
            # apt unquotes the target, so its name must hold no escapes.
            argv += [uri.replace("+", "%2b"), f"{scratch}/{package.sha256}", f"SHA256:{package.sha256}"]
        await run_tool(argv, timeout_s=_FETCH_TIMEOUT_S)
        for _, path, package in batch:
            fetched = Path(scratch) / package.sha256
            if fetched.exists() and await asyncio.to_thread(_sha256, fetched) == package.sha256:
                fetched.replace(path)
                fetched_bytes += package.size
    return fetched_bytes


def _unverified(paths: dict[LockedPackage, Path]) -> list[LockedPackage]:
    """The packages whose file is missing, or is not the one locked (then it is removed)."""
    bad: list[LockedPackage] = []
    for package, path in paths.items():
        if not path.exists():
            bad.append(package)
        elif path.stat().st_size != package.size or _sha256(path) != package.sha256:
            path.unlink()
            bad.append(package)
    return bad


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unreachable(missing: list[LockedPackage]) -> Retryable:
    return Retryable(
        "mirror_unreachable",
        f"None of the {len(missing)} packages of the base could be fetched.",
        after_s=30,
        hint="Check that apt works on this host (apt-get update).",
    )


def _gone(missing: list[LockedPackage], *, archived: bool) -> Permanent:
    names = ", ".join(f"{package.name} {package.version}" for package in missing[:10])
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    hint = "Run images/lock to take the present versions, and commit the new lock"
    if not archived:
        hint += "; or set build.package_archive to an archive that keeps old Debian packages"
    return Permanent(
        "base_package_gone",
        f"No mirror has {names}{more} any longer (a point release replaces versions).",
        hint=f"{hint}.",
    )
