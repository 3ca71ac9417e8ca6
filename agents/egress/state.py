"""The doors on disk: one JSON file per door, written in one step, so that a restart opens them again.

A lock on the folder keeps a second gateway from taking over the sockets of a running one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agents.wire.egress import DoorSpec

_SUFFIX = ".json"


class StateError(Exception):
    """The state folder cannot be used: it is locked by another gateway, or cannot be written."""


class DoorStore:
    """The folder ``path``, made if missing, held by this process until it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"The state folder {path} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StateError(f"Another gateway is running on the state folder {path}.") from error

    def save(self, door_id: str, spec: DoorSpec) -> None:
        """Durable when it returns. Raises StateError; the former file is then still there."""
        final = self._path / (door_id + _SUFFIX)
        new = final.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(msgspec.json.encode(spec))
                file.flush()
                os.fsync(file.fileno())
            new.replace(final)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            raise StateError(f"The door cannot be kept in {self._path}: {error.strerror}.") from error

    def remove(self, door_id: str) -> None:
        """Idempotent. Raises StateError."""
        try:
            (self._path / (door_id + _SUFFIX)).unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"The door cannot be removed from {self._path}: {error.strerror}.") from error

    def load(self) -> Iterator[tuple[str, DoorSpec | None]]:
        """Every kept door; None for one whose file cannot be read, which is put aside as ``ID.unreadable``."""
        for file in sorted(self._path.glob("*" + _SUFFIX)):
            try:
                spec = msgspec.json.decode(file.read_bytes(), type=DoorSpec)
            except (OSError, msgspec.DecodeError):
                with contextlib.suppress(OSError):
                    file.rename(file.with_suffix(".unreadable"))
                yield file.stem, None
            else:
                yield file.stem, spec

    def close(self) -> None:
        os.close(self._lock)
