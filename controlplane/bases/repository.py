"""The local package repository that a build installs from."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from controlplane.bases.lock import LockedPackage
from controlplane.bases.process import run_tool
from controlplane.errors import Permanent


async def write_repository(suite: str, paths: dict[LockedPackage, Path], target: Path) -> None:
    """A flat package repository at ``target``: hard links to the files, ``Packages`` and ``Release``.

    Permanent ``base_package_invalid`` for a file that is no package."""
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
