"""Resolving a package list to a lock, with apt in a root of its own: nothing of the host's state is used."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote

from controlplane.bases.aptsources import Mirrors, host_mirrors, no_mirror
from controlplane.bases.lock import Lock, LockedPackage, encode, read_package_list
from controlplane.errors import Permanent

SUITES = {"debian12": "bookworm"}
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def write_lock(base: str, images_dir: Path, *, apt_dir: Path = Path("/etc/apt")) -> Lock:
    """Resolve ``images_dir/base/packages.txt`` against the mirrors' present state and rewrite ``lock.json``.

    Blocking, and a matter of seconds. Raises Permanent ``unknown_base``, ``no_debian_mirror`` or
    ``base_resolve_failed``.
    """
    if base not in SUITES:
        raise Permanent("unknown_base", f"There is no base {base!r}.", hint=f"Known: {', '.join(sorted(SUITES))}.")
    names = read_package_list(images_dir / base / "packages.txt")
    lock = _resolve(SUITES[base], names, host_mirrors(apt_dir))
    target = images_dir / base / "lock.json"
    scratch = target.with_suffix(".json.new")
    scratch.write_text(encode(lock), encoding="utf-8")
    scratch.replace(target)
    return lock


def _resolve(suite: str, names: tuple[str, ...], mirrors: Mirrors) -> Lock:
    if not mirrors.main or not mirrors.security:
        raise no_mirror("Debian and its security archive")
    main, security = mirrors.main[0], mirrors.security[0]
    with tempfile.TemporaryDirectory(prefix="warmpool-lock-") as scratch:
        root = Path(scratch)
        options = _private_root(root, suite, main, security)
        _apt(["apt-get", *options, "update"])
        arch = _apt(["dpkg", "--print-architecture"]).strip()
        wanted = _apt(["apt-get", *options, "--yes", "--print-uris", "install", "?essential", *names])
        archives = dict(_archives(wanted, main, security))
        exact = [f"{name}={version}" for name, version in archives]
        stanzas = _apt(["apt-cache", *options, "show", *exact])
        found = {package.name: package for package in _packages(stanzas, archives)}
        packages = sorted(found.values(), key=lambda package: package.name)
        published = _published(root / "lists")
    if len(packages) != len(archives):
        missing = {name for name, _ in archives} - {package.name for package in packages}
        raise Permanent("base_resolve_failed", f"apt gave no checksum for {', '.join(sorted(missing))}.")
    snapshot = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(published))
    return Lock(suite=suite, arch=arch, source_date_epoch=published, snapshot=snapshot, packages=tuple(packages))


def _published(lists: Path) -> int:
    """When the newest of the archives was published, by its signed release file: the same state of the
    archive gives the same lock, whatever this host's clock says."""
    dates = [
        parsedate_to_datetime(match[1]).timestamp()
        for path in lists.glob("*Release")
        if (match := re.search(r"^Date: (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    ]
    if not dates:
        raise Permanent("base_resolve_failed", "The mirrors gave no release file with a date.")
    return int(max(dates))


def _private_root(root: Path, suite: str, main: str, security: str) -> list[str]:
    for folder in ("lists/partial", "cache/archives/partial"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    (root / "sources.list").write_text(
        f"deb {signed}{main} {suite} main\n"
        f"deb {signed}{main} {suite}-updates main\n"
        f"deb {signed}{security} {suite}-security main\n"
    )
    settings = {
        "Dir::State": root,
        "Dir::State::status": root / "status",
        "Dir::State::Lists": root / "lists",
        "Dir::Cache": root / "cache",
        "Dir::Etc::SourceList": root / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "APT::Update::Post-Invoke": "",
        "APT::Update::Post-Invoke-Success": "",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _apt(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=300, check=True, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError as error:
        raise Permanent(
            "base_resolve_failed", f"{argv[0]} is not installed.", hint="Run images/lock on a Debian system."
        ) from error
    except subprocess.CalledProcessError as error:
        raise Permanent("base_resolve_failed", f"{argv[0]} failed: {error.stderr.strip()[-2000:]}") from error
    return done.stdout


def _archives(print_uris: str, main: str, security: str) -> Iterator[tuple[tuple[str, str], str]]:
    """(name, version) → archive, from ``apt-get --print-uris``: 'URI' file size hash."""
    for uri, file_name in re.findall(r"^'([^']+)' (\S+\.deb) ", print_uris, flags=re.MULTILINE):
        name, version, _ = unquote(file_name).split("_", 2)
        # Not by prefix alone: …/debian is a prefix of …/debian-security.
        archive = "security" if uri.startswith(security + "/") else "main"
        yield (name, version), archive


def _packages(stanzas: str, archives: dict[tuple[str, str], str]) -> Iterator[LockedPackage]:
    for stanza in stanzas.strip().split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, flags=re.MULTILINE))
        archive = archives.get((fields["Package"], fields["Version"]))
        if archive is None or not fields.get("Filename", "").startswith("pool/"):
            continue
        yield LockedPackage(
            name=fields["Package"],
            version=fields["Version"],
            arch=fields["Architecture"],
            archive=archive,
            path=fields["Filename"],
            size=int(fields["Size"]),
            sha256=fields["SHA256"],
        )
