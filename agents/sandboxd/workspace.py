"""Paths below a root, resolved so that nothing outside can be reached, however the tree changes meanwhile.

Each component is opened relative to the directory before it, without following links; links are
read and followed here, and ``..`` goes back to a directory opened earlier. So no string is ever
resolved twice, and no kernel feature (openat2) is needed that an old seccomp profile forbids.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from types import TracebackType

_MAX_LINKS = 40
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class OutsideError(Exception):
    """The path, or a link on its way, leads out of the root."""


@dataclass(slots=True)
class Place:
    """Where a path ended: ``parent``/``name`` to create or replace it, ``target`` (O_PATH) if it exists.

    ``name`` is empty for the root itself, which has no parent here. ``path`` is absolute, links resolved.
    """

    parent: int
    name: str
    target: int | None
    path: str

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in {self.parent, self.target} - {None, -1}:
            os.close(fd)  # type: ignore[arg-type]

    def existing(self) -> int:
        """``target``; FileNotFoundError if there is nothing."""
        if self.target is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.target

    def mode(self) -> int | None:
        return None if self.target is None else os.fstat(self.target).st_mode


class Tree:
    """One root directory, named when made and opened at each call (it may not exist yet)."""

    def __init__(self, root: str) -> None:
        self.root = os.path.normpath(root)

    def find(self, path: str, *, follow: bool = True, make_parents: bool = False) -> Place:
        """Resolve ``path`` (relative to the root, or absolute and below it).

        ``follow``: a link in the last place is followed. A missing last component is no error.
        Raises OutsideError, OSError; ValueError for a NUL in the path.
        """
        walk = _Walk(self.root, make_parents)
        try:
            walk.go(self._parts(path), follow)
            return walk.place()
        finally:
            walk.close()

    def _parts(self, path: str) -> list[str]:
        if "\0" in path:
            raise ValueError("a path cannot hold a NUL")
        if not path.startswith("/"):
            return path.split("/")
        prefix = self.root.rstrip("/") + "/"
        if path.rstrip("/") + "/" == prefix:
            return []
        if not path.startswith(prefix):
            raise OutsideError(path)
        return path[len(prefix) :].split("/")


class _Walk:
    def __init__(self, root: str, make_parents: bool) -> None:
        self._root = root
        self._make = make_parents
        self._stack = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        self._names: list[str] = []
        self._last: str | None = None
        self._target: int | None = None
        self._links = 0

    def go(self, parts: list[str], follow: bool) -> None:
        todo = [part for part in reversed(parts) if part not in ("", ".")]
        while todo:
            part = todo.pop()
            if part == "..":
                self._up()
                continue
            fd = self._open(part, last=not todo)
            if fd is None:
                self._last = part
                return
            mode = os.fstat(fd).st_mode
            if stat.S_ISLNK(mode) and (todo or follow):
                todo += self._read_link(fd)
            elif stat.S_ISDIR(mode):
                self._stack.append(fd)
                self._names.append(part)
            elif todo:
                os.close(fd)
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            else:
                self._last, self._target = part, fd

    def place(self) -> Place:
        """Hands over the descriptors it needs."""
        if self._last is None:
            target = self._stack.pop()
            parent = self._stack.pop() if self._stack else -1
            name = self._names[-1] if self._names else ""
            return Place(parent, name, target, "/".join([self._root.rstrip("/"), *self._names]) or "/")
        target_fd, self._target = self._target, None
        path = "/".join([self._root.rstrip("/"), *self._names, self._last])
        return Place(self._stack.pop(), self._last, target_fd, path)

    def close(self) -> None:
        for fd in self._stack:
            os.close(fd)
        if self._target is not None:
            os.close(self._target)

    def _up(self) -> None:
        if len(self._stack) > 1:
            os.close(self._stack.pop())
            self._names.pop()
        elif self._root != "/":
            raise OutsideError("..")

    def _open(self, part: str, *, last: bool) -> int | None:
        here = self._stack[-1]
        try:
            return os.open(part, _PATH, dir_fd=here)
        except FileNotFoundError:
            if last:
                return None
            if not self._make:
                raise
        with contextlib.suppress(FileExistsError):  # made by someone else between the two calls
            os.mkdir(part, 0o755, dir_fd=here)
        return os.open(part, _PATH, dir_fd=here)

    def _read_link(self, fd: int) -> list[str]:
        """The link's target as components still to go, last first."""
        self._links += 1
        target = os.readlink("", dir_fd=fd)
        os.close(fd)
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            prefix = self._root.rstrip("/") + "/"
            if not (target.rstrip("/") + "/").startswith(prefix):
                raise OutsideError(target)
            target = target[len(prefix) :]
            while len(self._stack) > 1:
                self._up()
        return [part for part in reversed(target.split("/")) if part not in ("", ".")]
