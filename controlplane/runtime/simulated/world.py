"""What exists in the simulation, shared by its runtime and its agents, whatever process they run in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from agents.wire import ExecStart
from controlplane.runtime.simulated.commands import Course
from controlplane.runtime.simulated.shelf import FolderShelf, MemoryShelf, Shelf

T = TypeVar("T")


class SandboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Written before the sandbox is up and never changed; ``nonce`` tells it from an earlier one of its id."""

    id: str
    deployment: str
    image: str
    labels: dict[str, str]
    egress: bool
    created_at: float
    nonce: str


class Up(msgspec.Struct, frozen=True):
    """The runtime has started it; sandboxd answers at once, and is ready from ``ready_at`` on."""

    started_at: float
    ready_at: float


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    claim_id: str
    tenant: str
    env: dict[str, str]
    labels: dict[str, str]
    bound_at: float


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    ref: str
    deployment: str
    parent: str | None
    created_at: float
    size_bytes: int


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    mode: str
    modified_at: float
    data: bytes


class ExecRecord(msgspec.Struct, frozen=True, kw_only=True):
    start: ExecStart
    started_at: float
    course: Course


class ExecEnd(msgspec.Struct, frozen=True):
    """An end from outside, at epoch second ``at``."""

    at: float
    signal: str
    cancelled: bool


class World:
    """``World(None)`` lives in this process; ``World(folder)`` is one with all others on that folder."""

    def __init__(self, state_dir: Path | None) -> None:
        self._shelf: Shelf = MemoryShelf() if state_dir is None else FolderShelf(state_dir / "simulated")
        self._known: dict[str, SandboxRecord] = {}

    def add_sandbox(self, record: SandboxRecord) -> SandboxRecord:
        """The record that stands: this one, or an earlier one of the same id."""
        return self._first(f"sandbox/{record.id}", record, SandboxRecord)

    def sandbox(self, sandbox: str) -> SandboxRecord | None:
        return self._get(f"sandbox/{sandbox}", SandboxRecord)

    def sandboxes(self) -> list[tuple[SandboxRecord, bool, bool]]:
        """Every record with whether it is up and whether it is stopped. Records never change, so each is
        read once; three listings then tell the states of ten thousand in some milliseconds."""
        ids = self._shelf.names("sandbox")
        up, stopped = set(self._shelf.names("up")), set(self._shelf.names("stopped"))
        known = {name: record for name in ids if (record := self._known.get(name) or self.sandbox(name))}
        self._known = known
        return [(record, name in up, name in stopped) for name, record in known.items()]

    def remove_sandbox(self, sandbox: str) -> None:
        """The record goes last, so that a removal that was cut short is found again."""
        self._shelf.delete(f"up/{sandbox}")
        self._shelf.delete(f"stopped/{sandbox}")
        self._shelf.delete(f"claim/{sandbox}")
        for room in ("exec", "end", "file"):
            self._shelf.clear(f"{room}/{sandbox}")
        self._known.pop(sandbox, None)
        self._shelf.delete(f"sandbox/{sandbox}")

    def bring_up(self, sandbox: str, up: Up) -> Up:
        return self._first(f"up/{sandbox}", up, Up)

    def up(self, sandbox: str) -> Up | None:
        return self._get(f"up/{sandbox}", Up)

    def stop(self, sandbox: str) -> None:
        self._shelf.put(f"stopped/{sandbox}", b"")

    def stopped(self, sandbox: str) -> bool:
        return self._shelf.exists(f"stopped/{sandbox}")

    def bind(self, sandbox: str, claim: Claim) -> Claim:
        """The claim that holds the sandbox: this one, or the first."""
        return self._first(f"claim/{sandbox}", claim, Claim)

    def claim(self, sandbox: str) -> Claim | None:
        return self._get(f"claim/{sandbox}", Claim)

    def add_exec(self, sandbox: str, record: ExecRecord) -> ExecRecord:
        return self._first(f"exec/{sandbox}/{record.start.id}", record, ExecRecord)

    def exec(self, sandbox: str, exec_id: str) -> ExecRecord | None:
        return self._get(f"exec/{sandbox}/{exec_id}", ExecRecord)

    def execs(self, sandbox: str) -> list[ExecRecord]:
        found = (self.exec(sandbox, name) for name in self._shelf.names(f"exec/{sandbox}"))
        return sorted((record for record in found if record), key=lambda record: record.started_at)

    def end_exec(self, sandbox: str, exec_id: str, end: ExecEnd) -> ExecEnd:
        return self._first(f"end/{sandbox}/{exec_id}", end, ExecEnd)

    def exec_end(self, sandbox: str, exec_id: str) -> ExecEnd | None:
        return self._get(f"end/{sandbox}/{exec_id}", ExecEnd)

    def write_file(self, owner: str, file: FileRecord) -> None:
        self._shelf.put(f"file/{owner}/{_file_name(file.path)}", msgspec.msgpack.encode(file))

    def file(self, owner: str, path: str) -> FileRecord | None:
        return self._get(f"file/{owner}/{_file_name(path)}", FileRecord)

    def files(self, owner: str) -> list[FileRecord]:
        room = f"file/{owner}"
        return [file for name in self._shelf.names(room) if (file := self._get(f"{room}/{name}", FileRecord))]

    def delete_file(self, owner: str, path: str) -> None:
        self._shelf.delete(f"file/{owner}/{_file_name(path)}")

    def copy_files(self, source: str, target: str) -> int:
        """Bytes copied."""
        files = self.files(source)
        for file in files:
            self.write_file(target, file)
        return sum(len(file.data) for file in files)

    def add_image(self, image: ImageRecord) -> ImageRecord:
        return self._first(f"image/{image.ref}", image, ImageRecord)

    def image(self, ref: str) -> ImageRecord | None:
        return self._get(f"image/{ref}", ImageRecord)

    def images(self) -> list[ImageRecord]:
        return [image for ref in self._shelf.names("image") if (image := self.image(ref))]

    def remove_image(self, ref: str) -> None:
        self._shelf.delete(f"image/{ref}")
        self._shelf.clear(f"file/{ref}")

    def _first(self, key: str, value: T, kind: type[T]) -> T:
        while not self._shelf.create(key, msgspec.msgpack.encode(value)):
            # None: removed between the two calls, so it can be created after all.
            if (standing := self._get(key, kind)) is not None:
                return standing
        return value

    def _get(self, key: str, kind: Callable[..., T]) -> T | None:
        raw = self._shelf.read(key)
        return None if raw is None else msgspec.msgpack.decode(raw, type=kind)


def _file_name(path: str) -> str:
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()
