"""Fetching exactly the locked package files, and the local repository that the build installs from."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from controlplane.bases.aptsources import Mirrors
from controlplane.bases.lock import Lock, LockedPackage
from controlplane.bases.process import run_tool
from controlplane.errors import Permanent, Retryable

APT_HELPER = "/usr/lib/apt/apt-helper"
_GROUPS = 4
_FETCH_TIMEOUT_S = 600.0


async def fetch_packages(
    lock: Lock, debs_dir: Path, mirrors: Mirrors, progress: Callable[[str], None]
) -> dict[LockedPackage, Path]:
    """Every locked package as a file of ``debs_dir`` with the locked checksum; no network when all are there.

    apt's own downloader is used, so that the host's proxies, certificates and credentials apply. Each mirror
    is tried in turn, then Debian's snapshot archive. Raises Permanent ``base_package_gone`` naming the
    packages that none has, Retryable ``mirror_unreachable`` when nothing at all could be fetched.
    """
    debs_dir.mkdir(parents=True, exist_ok=True)
    paths = {package: debs_dir / package.file_name for package in lock.packages}
    missing = await asyncio.to_thread(_unverified, paths)
    wanted = len(missing)
    for attempt in _attempts(mirrors):
        if not missing:
            break
        size = sum(package.size for package in missing)
        progress(f"fetching {len(missing)} packages, {size / 1e6:.0f} MB")
        await _fetch_all([(attempt(package, lock), paths[package], package) for package in missing])
        missing = await asyncio.to_thread(_unverified, {package: paths[package] for package in missing})
    if missing:
        raise _unavailable(missing, everything=len(missing) == wanted and wanted > 1)
    return paths


async def write_repository(suite: str, paths: dict[LockedPackage, Path], target: Path) -> None:
    """A flat package repository at ``target``: hard links to the files, ``Packages`` and ``Release``."""
    target.mkdir(parents=True)
    limit = asyncio.Semaphore(4)

    async def stanza(package: LockedPackage, path: Path) -> str:
        async with limit:
            code, control = await run_tool(["dpkg-deb", "-f", str(path)], timeout_s=60)
        if code != 0:
            raise Permanent("base_package_invalid", f"dpkg-deb cannot read {path.name}: {control.strip()}.")
        (target / path.name).hardlink_to(path)
        place = f"Filename: ./{path.name}\nSize: {package.size}\nSHA256: {package.sha256}\n"
        return f"{control.rstrip()}\n{place}"

    stanzas = await asyncio.gather(*(stanza(package, path) for package, path in paths.items()))
    index = "\n".join(stanzas).encode()
    (target / "Packages").write_bytes(index)
    # mmdebstrap takes essential packages only from an archive that says it is of the wanted suite.
    (target / "Release").write_text(
        f"Suite: {suite}\nCodename: {suite}\nSHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n",
        encoding="utf-8",
    )


def _attempts(mirrors: Mirrors) -> Iterable[Callable[[LockedPackage, Lock], str]]:
    def at_mirror(index: int) -> Callable[[LockedPackage, Lock], str]:
        def uri(package: LockedPackage, lock: Lock) -> str:
            roots = mirrors.of(package.archive)
            return f"{roots[min(index, len(roots) - 1)]}/{package.path}"

        return uri

    def at_snapshot(package: LockedPackage, lock: Lock) -> str:
        return f"{mirrors.snapshot(package.archive)}/{lock.snapshot}/{package.path}"

    yield from (at_mirror(index) for index in range(max(len(mirrors.main), len(mirrors.security))))
    yield at_snapshot


async def _fetch_all(wanted: list[tuple[str, Path, LockedPackage]]) -> None:
    """Several downloads at once; what fails is seen afterwards, by its absence."""
    groups = [wanted[start::_GROUPS] for start in range(_GROUPS)]
    await asyncio.gather(*(_fetch_group(group) for group in groups if group))


async def _fetch_group(group: list[tuple[str, Path, LockedPackage]]) -> None:
    with tempfile.TemporaryDirectory(dir=group[0][1].parent, prefix=".fetch-") as scratch:
        argv = [APT_HELPER, "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2", "download-file"]
        for uri, _, package in group:
            # apt unquotes the target, so its name must hold no escapes.
            argv += [uri.replace("+", "%2b"), f"{scratch}/{package.sha256}", f"SHA256:{package.sha256}"]
        await run_tool(argv, timeout_s=_FETCH_TIMEOUT_S)
        for _, path, package in group:
            fetched = Path(scratch) / package.sha256
            if fetched.exists() and await asyncio.to_thread(_sha256, fetched) == package.sha256:
                fetched.replace(path)


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


def _unavailable(missing: list[LockedPackage], *, everything: bool) -> Exception:
    if everything:
        return Retryable(
            "mirror_unreachable",
            f"None of the {len(missing)} packages of the base could be fetched.",
            after_s=30,
            hint="Check that apt works on this host (apt-get update).",
        )
    names = ", ".join(f"{package.name} {package.version}" for package in missing[:10])
    return Permanent(
        "base_package_gone",
        f"No mirror has {names} any longer (a point release replaces versions).",
        hint="Run images/lock to take the present versions, and commit the new lock.",
    )
