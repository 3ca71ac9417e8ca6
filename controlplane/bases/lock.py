"""The lock of a base: every package with version, size and checksum, and the date its files may bear.

Written by ``images/lock``, read by the builder. Standard library only, so that the script runs anywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controlplane.errors import Permanent

FORMAT = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_VERSION = re.compile(r"[A-Za-z0-9.+:~-]+")
_POOL_PATH = re.compile(r"pool/[A-Za-z0-9+.~%_/-]+\.deb")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One package file. ``archive`` is ``main`` or ``security``; ``path`` is relative to that archive's
    root (``pool/…``); ``size`` in bytes; ``sha256`` of the file, in hex."""

    name: str
    version: str
    arch: str
    archive: str
    path: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The archive's own name for it, also in the local cache: without an epoch, so without a colon."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """``source_date_epoch``: epoch seconds, the newest time that a file of the base bears.
    ``snapshot``: the UTC moment (``YYYYMMDDTHHMMSSZ``) of the archive that the versions were taken from."""

    suite: str
    arch: str
    source_date_epoch: int
    snapshot: str
    packages: tuple[LockedPackage, ...]

    def fingerprint(self) -> str:
        """SHA-256 in hex over everything that the lock says."""
        return hashlib.sha256(encode(self).encode()).hexdigest()


def encode(lock: Lock) -> str:
    body = {"format": FORMAT, **asdict(lock)}
    return json.dumps(body, indent=1, ensure_ascii=True) + "\n"


def read_lock(path: Path) -> Lock:
    """The lock at ``path``. Raises Permanent ``base_lock_missing`` or ``base_lock_invalid``."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Permanent(
            "base_lock_missing",
            f"There is no lock of package versions at {path}.",
            hint="Run images/lock to write it.",
        ) from error
    try:
        return _decode(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise Permanent(
            "base_lock_invalid", f"The lock {path} cannot be read: {error}.", hint="Run images/lock to rewrite it."
        ) from error


def read_package_list(path: Path) -> tuple[str, ...]:
    """The names in a ``packages.txt``: one a line, ``#`` begins a comment."""
    lines = (line.split("#", 1)[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line)


def _decode(body: dict[str, Any]) -> Lock:
    if body["format"] != FORMAT:
        raise ValueError(f"format {body['format']!r} is not {FORMAT}")
    packages = tuple(_decode_package(entry) for entry in body["packages"])
    if not packages:
        raise ValueError("it names no packages")
    return Lock(
        suite=_matching(_NAME, body["suite"]),
        arch=_matching(_NAME, body["arch"]),
        source_date_epoch=int(body["source_date_epoch"]),
        snapshot=_matching(re.compile(r"\d{8}T\d{6}Z"), body["snapshot"]),
        packages=packages,
    )


def _decode_package(entry: dict[str, Any]) -> LockedPackage:
    if entry["archive"] not in ("main", "security"):
        raise ValueError(f"archive {entry['archive']!r} is neither main nor security")
    path = _matching(_POOL_PATH, entry["path"])
    if ".." in path:
        raise ValueError(f"path {path!r} leaves the archive")
    return LockedPackage(
        name=_matching(_NAME, entry["name"]),
        version=_matching(_VERSION, entry["version"]),
        arch=_matching(_NAME, entry["arch"]),
        archive=entry["archive"],
        path=path,
        size=int(entry["size"]),
        sha256=_matching(_SHA256, entry["sha256"]),
    )


def _matching(pattern: re.Pattern[str], text: object) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is not of the form {pattern.pattern}")
    return text
