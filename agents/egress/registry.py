"""All doors of a gateway: opening, replacing and closing them, and opening them again after a restart."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import msgspec

from agents.egress.audit import Row
from agents.egress.door import Door
from agents.egress.listener import Shared
from agents.egress.policy import BadEntry
from agents.egress.sockets import BindError
from agents.egress.state import DoorStore, StateError
from agents.wire.egress import DoorReport, DoorSpec, GatewayHealth

SOCKET_NAME = "egress.sock"
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")
_MAX_LABELS = 32
_MAX_LABEL_CHARS = 256


class BadDoor(Exception):
    """A door cannot be made as asked. ``code`` is machine-readable, ``status`` the HTTP status."""

    def __init__(self, code: str, detail: str, *, status: int = 400, hint: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.hint = hint


class DoorRegistry:
    """``doors_dir`` is where a door without a path of its own has its folder."""

    def __init__(self, *, store: DoorStore, doors_dir: Path, shared: Shared) -> None:
        self._store = store
        self._doors_dir = doors_dir
        self._shared = shared
        self._doors: dict[str, Door] = {}
        self._dropped: dict[str, str] = {}
        self._started_at = shared.now()
        # One change at a time: two PUTs of one door must not bind and save in different orders.
        self._changing = asyncio.Lock()

    async def reopen(self) -> None:
        """Opens every kept door. One whose folder has vanished is forgotten; the reason is in ``health``."""
        for door_id, spec in list(self._store.load()):
            try:
                if spec is None:
                    raise BadDoor("state_unreadable", "Its state file cannot be read and was put aside.")
                self._doors[door_id] = await Door.open(door_id, spec, self._shared)
            except BindError as error:
                self._drop(door_id, error.code, error.detail, forget=error.code == "directory_missing")
            except BadEntry as error:
                self._drop(door_id, "bad_allow_entry", str(error), forget=False)
            except BadDoor as error:
                self._drop(door_id, error.code, error.detail, forget=False)

    async def put(self, door_id: str, spec: DoorSpec) -> DoorReport:
        """Opens or replaces. Idempotent. Raises BadDoor; then the door is as it was."""
        spec = self._complete(door_id, spec)
        async with self._changing:
            door = self._doors.get(door_id)
            self._check_path_free(door_id, Path(spec.socket_path or ""))
            try:
                if door is None:
                    door = await Door.open(door_id, spec, self._shared)
                    await self._save_or_undo(door, spec)
                    self._doors[door_id] = door
                    self._audit(door_id, "opened", spec.labels)
                else:
                    await self._replace(door, spec)
            except BadEntry as error:
                raise BadDoor("bad_allow_entry", str(error)) from error
            except BindError as error:
                raise BadDoor(error.code, error.detail, status=409) from error
            except StateError as error:
                raise BadDoor("state_not_written", str(error), status=503) from error
            self._dropped.pop(door_id, None)
            return door.report()

    async def delete(self, door_id: str) -> None:
        """Closes the door and all its connections; a missing one is no error. Raises BadDoor."""
        async with self._changing:
            try:
                if _ID.fullmatch(door_id):
                    self._store.remove(door_id)
            except StateError as error:
                raise BadDoor("state_not_written", str(error), status=503) from error
            self._dropped.pop(door_id, None)
            door = self._doors.pop(door_id, None)
            if door is not None:
                await door.close(unlink=True)
                self._audit(door_id, "closed", door.report().labels)

    def get(self, door_id: str) -> DoorReport:
        """Raises BadDoor ``door_not_found``."""
        door = self._doors.get(door_id)
        if door is None:
            raise BadDoor("door_not_found", f"There is no door {door_id[:80]!r}.", status=404)
        return door.report()

    def list(self) -> list[DoorReport]:
        return [self._doors[door_id].report() for door_id in sorted(self._doors)]

    def health(self) -> GatewayHealth:
        return GatewayHealth(
            status="ok",
            pid=os.getpid(),
            started_at=self._started_at,
            doors=len(self._doors),
            connections_open=sum(door.connections_open for door in self._doors.values()),
            audit_rows_lost=self._shared.audit.lost,
            dropped_doors=dict(self._dropped),
        )

    async def close(self) -> None:
        """Stops serving and forgets nothing: the next start opens the same doors."""
        for door in self._doors.values():
            await door.close(unlink=False)
        self._doors.clear()

    def _complete(self, door_id: str, spec: DoorSpec) -> DoorSpec:
        if not _ID.fullmatch(door_id):
            hint = "Use 1 to 128 of a-z, 0-9, '_' and '-', starting with a letter or digit."
            raise BadDoor("invalid_door_id", f"Door id {door_id[:80]!r} is not valid.", hint=hint)
        if len(spec.labels) > _MAX_LABELS or any(
            len(text) > _MAX_LABEL_CHARS for pair in spec.labels.items() for text in pair
        ):
            raise BadDoor("too_many_labels", f"At most {_MAX_LABELS} labels of {_MAX_LABEL_CHARS} characters.")
        path = Path(spec.socket_path or self._doors_dir / door_id / SOCKET_NAME)
        if not path.is_absolute() or "\0" in str(path) or not path.name or ".." in path.parts:
            raise BadDoor("invalid_socket_path", "The socket path must be absolute, without '..'.")
        return msgspec.structs.replace(spec, socket_path=str(path))

    def _check_path_free(self, door_id: str, path: Path) -> None:
        for other in self._doors.values():
            if other.id != door_id and other.socket_path == path:
                raise BadDoor("path_in_use", f"Door {other.id!r} listens at {path}.", status=409)

    async def _save_or_undo(self, door: Door, spec: DoorSpec) -> None:
        try:
            self._store.save(door.id, spec)
        except StateError:
            await door.close(unlink=True)
            raise

    async def _replace(self, door: Door, spec: DoorSpec) -> None:
        before = door.report()
        await door.replace(spec)
        if (before.socket_path, before.allow, before.labels) == (spec.socket_path, spec.allow, spec.labels):
            return
        try:
            self._store.save(door.id, spec)
        except StateError:
            await door.replace(DoorSpec(socket_path=before.socket_path, allow=before.allow, labels=before.labels))
            raise
        self._audit(door.id, "replaced", spec.labels)

    def _drop(self, door_id: str, code: str, detail: str, *, forget: bool) -> None:
        if forget:
            self._store.remove(door_id)
        self._dropped[door_id] = code
        self._audit(door_id, code, {}, detail=detail)

    def _audit(self, door_id: str, code: str, labels: dict[str, str], *, detail: str = "") -> None:
        row = Row(at=self._shared.now(), outcome="door", door=door_id, code=code, labels=labels, detail=detail)
        self._shared.audit.write(row)
