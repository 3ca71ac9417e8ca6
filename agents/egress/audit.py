"""The record of what left through a door and what was refused: one JSON line per decision.

A row holds host and port, never a path or header, since those can carry secrets. The file is bounded: at
``max_bytes`` it is renamed to ``NAME.1``, replacing the one before. A row that cannot be written is
counted, not raised: a full disk must not become a way to stop the sandboxes of everybody.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal, Protocol

import msgspec

Outcome = Literal["allowed", "denied", "bad_request", "failed", "door"]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``outcome`` allowed: written when the connection or exchange has ended, with its bytes and the address
    dialled; denied: the policy; bad_request: malformed; failed: allowed but not reached or cut off (``code``
    says why); door: a door was opened, changed, closed or dropped."""

    at: float
    outcome: Outcome
    door: str
    code: str = ""
    method: str = ""
    target: str = ""
    detail: str = ""
    address: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    duration_s: float = 0.0
    labels: dict[str, str] = {}


class AuditSink(Protocol):
    def write(self, row: Row) -> None: ...

    @property
    def lost(self) -> int:
        """Rows that could not be written."""
        ...


class JsonLinesSink:
    """Appends to ``path``; None writes to standard error."""

    def __init__(self, path: Path | None, *, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lost = 0
        self._size = 0
        self._file = sys.stderr.fileno()
        if path is not None:
            self._open(path)

    @property
    def lost(self) -> int:
        return self._lost

    def write(self, row: Row) -> None:
        line = msgspec.json.encode(row) + b"\n"
        try:
            if self._path is not None and self._size and self._size + len(line) > self._max_bytes:
                self._rotate(self._path)
            written = os.write(self._file, line)
        except OSError:
            self._lost += 1
            return
        self._size += written
        if written < len(line):
            self._lost += 1

    def close(self) -> None:
        if self._path is not None:
            os.close(self._file)

    def _open(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self, path: Path) -> None:
        path.replace(path.with_name(path.name + ".1"))
        os.close(self._file)
        self._open(path)
