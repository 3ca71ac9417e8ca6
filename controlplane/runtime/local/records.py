"""What the local runtime keeps on disk: where, and in which form.

One directory a sandbox under ``sandboxes/``. ``record.json`` is written first and goes last, so that
whatever a crash leaves is found by its labels. Every file is replaced whole, never changed in place.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from controlplane.errors import NotFound, Permanent

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# sun_path holds 108 bytes, one of them the end.
_LONGEST_SOCKET_PATH = 107


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable facts of a sandbox. ``created_at``: epoch seconds."""

    id: str
    image: str
    labels: dict[str, str]
    egress: bool
    created_at: float


class StartedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Its first process: ``start_ticks`` and ``boot_id`` tell it from a later one with the same pid."""

    pid: int
    start_ticks: int
    boot_id: str


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An image's manifest. ``layers``: directories below ``images/``, the uppermost first, its own included.
    ``id_start``: the id range that its files belong to."""

    ref: str
    parent: str | None
    layers: list[str]
    id_start: int
    created_at: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPlace:
    """The directory of one sandbox. ``data`` is limited in size when a disk limit was asked for, and holds
    all that the sandbox can make grow; ``doors`` is never mounted into it."""

    root: Path
    record: Path
    started: Path
    pid_file: Path
    door_in: Path
    door_out: Path
    config: Path
    bundle: Path
    rootfs: Path
    disk_image: Path
    data: Path
    upper: Path
    work: Path
    spool: Path
    engine: Path
    console: Path

    @classmethod
    def at(cls, root: Path) -> SandboxPlace:
        data = root / "data"
        return cls(
            root=root,
            record=root / "record.json",
            started=root / "started.json",
            pid_file=root / "init.pid",
            door_in=root / "doors" / "in.sock",
            door_out=root / "out" / "egress.sock",
            config=root / "config",
            bundle=root / "bundle",
            rootfs=root / "rootfs",
            disk_image=root / "disk.img",
            data=data,
            upper=data / "upper",
            work=data / "work",
            spool=data / "spool",
            engine=data / "docker",
            console=data / "console.log",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlaces:
    """The runtime's own folder of one deployment."""

    root: Path
    sandboxes: Path
    images: Path
    locks: Path
    oci: Path

    @classmethod
    def at(cls, root: Path) -> StatePlaces:
        return cls(
            root=root,
            sandboxes=root / "sandboxes",
            images=root / "images",
            locks=root / "locks",
            oci=root / "oci",
        )

    def make(self) -> None:
        """The folders, with modes that let a sandbox's root pass through to what is mounted for it."""
        for folder in (self.root, self.sandboxes, self.images):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            folder.chmod(0o711)
        for folder in (self.locks, self.oci):
            folder.mkdir(mode=0o700, exist_ok=True)

    def sandbox(self, sandbox: str) -> SandboxPlace:
        """Raises Permanent ``invalid_sandbox_id`` or ``state_path_too_long``."""
        if not _ID.fullmatch(sandbox):
            raise Permanent("invalid_sandbox_id", f"{sandbox[:80]!r} is no sandbox id.")
        place = SandboxPlace.at(self.sandboxes / sandbox)
        if len(os.fsencode(place.door_out)) > _LONGEST_SOCKET_PATH:
            raise Permanent(
                "state_path_too_long",
                f"A socket below {self.root} would have a path of more than {_LONGEST_SOCKET_PATH} bytes.",
                hint="Choose a state folder with a shorter path.",
            )
        return place

    def remains(self, sandbox: str) -> SandboxPlace:
        """Where a sandbox is moved before it is deleted."""
        return SandboxPlace.at(self.sandboxes / f".gone-{sandbox}")


def check_ref(ref: str) -> str:
    if not _REF.fullmatch(ref):
        raise Permanent("invalid_image_ref", f"{ref[:80]!r} is no image name.")
    return ref


def write(path: Path, record: msgspec.Struct) -> None:
    """Replace ``path`` whole; a crash leaves the old or the new one."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_bytes(msgspec.json.encode(record))
    scratch.replace(path)


def read_sandbox(place: SandboxPlace) -> SandboxRecord | None:
    return _read(place.record, SandboxRecord)


def read_started(place: SandboxPlace) -> StartedRecord | None:
    return _read(place.started, StartedRecord)


def read_image(folder: Path) -> ImageRecord:
    """Raises NotFound ``image_not_found``."""
    found = _read(folder / "manifest.json", ImageRecord)
    if found is None:
        raise NotFound("image_not_found", f"There is no image {folder.name!r}.", hint="Build its template again.")
    return found


_Record = TypeVar("_Record", bound=msgspec.Struct)


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    """None when it is missing, or was damaged by a crash of the host: then the thing counts as half made."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
