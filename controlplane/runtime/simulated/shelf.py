"""Where simulated records stand: in this process, or in a folder that several processes share.

A key is ``kind/name`` or ``kind/owner/name``; the parts hold no ``/``.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

_serial = itertools.count()


class Shelf(Protocol):
    def create(self, key: str, value: bytes) -> bool:
        """Put ``value`` unless something stands there: False. Atomic, also between processes."""
        ...

    def put(self, key: str, value: bytes) -> None: ...

    def read(self, key: str) -> bytes | None: ...

    def exists(self, key: str) -> bool: ...

    def delete(self, key: str) -> None: ...

    def names(self, room: str) -> list[str]:
        """The last parts of all keys directly in ``room`` (``sandbox``, ``exec/ID``)."""
        ...

    def clear(self, room: str) -> None: ...


class MemoryShelf:
    def __init__(self) -> None:
        self._rooms: dict[str, dict[str, bytes]] = {}

    def create(self, key: str, value: bytes) -> bool:
        room, _, name = key.rpartition("/")
        return self._rooms.setdefault(room, {}).setdefault(name, value) is value

    def put(self, key: str, value: bytes) -> None:
        room, _, name = key.rpartition("/")
        self._rooms.setdefault(room, {})[name] = value

    def read(self, key: str) -> bytes | None:
        room, _, name = key.rpartition("/")
        return self._rooms.get(room, {}).get(name)

    def exists(self, key: str) -> bool:
        return self.read(key) is not None

    def delete(self, key: str) -> None:
        room, _, name = key.rpartition("/")
        self._rooms.get(room, {}).pop(name, None)

    def names(self, room: str) -> list[str]:
        return list(self._rooms.get(room, ()))

    def clear(self, room: str) -> None:
        self._rooms.pop(room, None)


class FolderShelf:
    """One file a record. A value appears whole or not at all: written aside, then linked to its name, and
    ``link`` refuses a name that is taken. Nothing is flushed to the disk: a simulation need not survive
    the machine, only its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = folder / "aside"
        self._aside.mkdir(parents=True, exist_ok=True)

    def create(self, key: str, value: bytes) -> bool:
        aside = self._write_aside(value)
        target = self._path(key)
        try:
            _in_room(lambda: target.hardlink_to(aside), target)
            return True
        except FileExistsError:
            return False
        finally:
            aside.unlink()

    def put(self, key: str, value: bytes) -> None:
        aside = self._write_aside(value)
        target = self._path(key)
        _in_room(lambda: aside.replace(target), target)

    def read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def exists(self, key: str) -> bool:
        return self._path(key).exists()

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def names(self, room: str) -> list[str]:
        try:
            return [unquote(entry.name) for entry in os.scandir(self._path(room)) if entry.is_file()]
        except FileNotFoundError:
            return []

    def clear(self, room: str) -> None:
        shutil.rmtree(self._path(room), ignore_errors=True)

    def _path(self, key: str) -> Path:
        # "." is quoted by hand: quote() leaves it, and ".." must never be a name of a file here.
        return self._folder.joinpath(*(quote(part, safe="").replace(".", "%2E") for part in key.split("/")))

    def _write_aside(self, value: bytes) -> Path:
        aside = self._aside / f"{os.getpid()}-{next(_serial)}"
        aside.write_bytes(value)
        return aside


def _in_room(place: Callable[[], object], target: Path) -> None:
    try:
        place()
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        place()
