"""What the docker runtime keeps on the host: a folder per sandbox, and locks between processes.

``record.json`` is written first and goes last, so that whatever a crash leaves is found again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from controlplane.errors import Permanent, Retryable

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# sun_path holds 108 bytes, one of them the end.
_LONGEST_SOCKET_PATH = 107
_LOCK_PATIENCE_S = 120.0
_BUCKETS = 256


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable facts of a sandbox. ``created_at``: epoch seconds."""

    id: str
    image: str
    labels: dict[str, str]
    egress: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class SandboxPlace:
    """The folder of one sandbox. ``door_in`` is shared with the sandbox and writable there, ``door_out`` and
    ``config`` read-only; ``spool`` and ``engine`` keep logs and nested images out of what a commit seals."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "record.json"

    @property
    def door_in(self) -> Path:
        return self.root / "in"

    @property
    def socket_in(self) -> Path:
        return self.door_in / "sandboxd.sock"

    @property
    def door_out(self) -> Path:
        return self.root / "out"

    @property
    def socket_out(self) -> Path:
        return self.door_out / "egress.sock"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def engine(self) -> Path:
        return self.root / "engine"

    def make(self, record: SandboxRecord, daemon_config: bytes, mapped_root: int, *, docker: bool) -> None:
        """All folders and files; repeating it after a crash finishes it. Raises OSError."""
        self.root.mkdir(mode=0o711, exist_ok=True)
        _write(self.record, msgspec.json.encode(record))
        folders = [(self.door_in, 0o700), (self.config, 0o700), (self.spool, 0o711)]
        if docker:
            folders.append((self.engine, 0o710))
        for folder, mode in folders:
            folder.mkdir(mode=mode, exist_ok=True)
            os.chown(folder, mapped_root, mapped_root)
        self.door_out.mkdir(mode=0o711, exist_ok=True)
        key_file = self.config / "sandboxd.json"
        _write(key_file, daemon_config, mode=0o400)
        os.chown(key_file, mapped_root, mapped_root)

    def remove(self) -> None:
        """Everything, the record last; missing is success. Raises OSError."""
        if not self.root.exists():
            return
        for entry in self.root.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != self.record:
                entry.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)
        self.root.rmdir()

    def read(self) -> SandboxRecord | None:
        """None when missing, or damaged by a crash of the host."""
        try:
            return msgspec.json.decode(self.record.read_bytes(), type=SandboxRecord)
        except (OSError, msgspec.DecodeError):
            return None


@dataclass(frozen=True, slots=True)
class StatePlaces:
    """The runtime's own folder of one deployment."""

    root: Path

    def make(self) -> None:
        """With modes that let a sandbox's mapped root pass through to what is mounted for it."""
        for folder in (self.root, self.root / "sandboxes"):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            folder.chmod(0o711)
        (self.root / "locks").mkdir(mode=0o700, exist_ok=True)

    def sandbox(self, sandbox: str) -> SandboxPlace:
        """Raises Permanent ``invalid_sandbox_id`` or ``state_path_too_long``."""
        if not _ID.fullmatch(sandbox):
            raise Permanent("invalid_sandbox_id", f"{sandbox[:80]!r} is no sandbox id.")
        place = SandboxPlace(self.root / "sandboxes" / sandbox)
        if len(os.fsencode(place.socket_in)) > _LONGEST_SOCKET_PATH:
            raise Permanent(
                "state_path_too_long",
                f"A socket below {self.root} would have a path of more than {_LONGEST_SOCKET_PATH} bytes.",
                hint="Choose a state folder with a shorter path.",
            )
        return place

    def sandboxes(self) -> list[SandboxPlace]:
        with contextlib.suppress(FileNotFoundError):
            return [SandboxPlace(entry) for entry in (self.root / "sandboxes").iterdir()]
        return []

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Held by one thread of one process; the kernel drops it when the holder dies. Names share 256 files,
        so that none is ever removed. Raises Retryable ``sandbox_busy`` after two minutes."""
        self.make()
        path = self.root / "locks" / f"{zlib.crc32(name.encode()) % _BUCKETS:02x}.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_PATIENCE_S
            while not _try_lock(handle):
                if time.monotonic() > deadline:
                    raise Retryable("sandbox_busy", f"Another process holds the lock of {name}.", after_s=5)
                time.sleep(0.003)
            yield
        finally:
            os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` whole; a crash leaves the old or the new one."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    scratch.replace(path)
