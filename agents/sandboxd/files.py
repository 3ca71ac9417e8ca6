"""Files on request: read, write, list, delete.

A session reaches the workspace only, and as the sandbox's user: on a thread whose file system ids are
that user's, so that the kernel refuses what a command could not do either. ``system`` may also name
absolute paths elsewhere, reached as root. All functions here block and run on a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from agents.sandboxd.kernel import file_access_as
from agents.sandboxd.problems import ProblemError, from_os_error
from agents.sandboxd.spawn import Credentials
from agents.sandboxd.workspace import OutsideError, Place, Tree
from agents.wire import FileInfo, FileList

MAX_ENTRIES = 10_000
DEFAULT_MODE = 0o644


class Files:
    """``credentials`` None: the daemon is not root, and reaches files as whom it is."""

    def __init__(self, workspace: Tree, credentials: Credentials | None) -> None:
        self._workspace = workspace
        self._everywhere = Tree("/")
        self._credentials = credentials

    def open_for_reading(self, path: str, *, system: bool) -> tuple[int, int]:
        """A descriptor of a regular file, and its size."""
        with self._at(path, system) as tree, tree.find(path) as place:
            mode = os.fstat(place.existing()).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(mode):
                raise ProblemError(400, "NOT_A_FILE", f"{path!r} is neither a file nor a directory.")
            # The very object that was just examined is opened, whatever the name means by now.
            fd = os.open(f"/proc/self/fd/{place.existing()}", os.O_RDONLY | os.O_CLOEXEC)
            return fd, os.fstat(fd).st_size

    def begin_write(self, path: str, *, system: bool) -> Upload:
        """A temporary file beside ``path``; parents are made. The result replaces ``path`` by ``commit``."""
        with self._at(path, system) as tree, tree.find(path, make_parents=True) as place:
            mode = place.mode()
            if not place.name or (mode is not None and stat.S_ISDIR(mode)):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if mode is not None and not stat.S_ISREG(mode):
                raise ProblemError(400, "NOT_A_FILE", f"{path!r} is neither a file nor a directory.")
            return Upload(self, place, path, as_root=self._beyond(path, system))

    def list(self, path: str, *, system: bool) -> FileList:
        """Entries sorted by name, at most ``MAX_ENTRIES``."""
        with self._at(path, system) as tree, tree.find(path) as place:
            fd = os.open(f"/proc/self/fd/{place.existing()}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with os.scandir(fd) as found:
                    names = sorted(entry.name for entry in found)
                shown = [info for name in names[:MAX_ENTRIES] if (info := _describe(fd, name, place.path))]
            finally:
                os.close(fd)
            return FileList(path=place.path, entries=shown, truncated=len(names) > MAX_ENTRIES)

    def delete(self, path: str, *, system: bool, recursive: bool) -> None:
        """Idempotent: what is missing is deleted. A link is removed, never what it points to."""
        with self._at(path, system) as tree:
            try:
                place = tree.find(path, follow=False)
            except FileNotFoundError:
                return
            with place:
                if not place.name:
                    raise ProblemError(400, "IS_ROOT", f"{path!r} is the root and cannot be deleted.")
                if place.target is not None:
                    _remove(place, recursive)

    def _beyond(self, path: str, system: bool) -> bool:
        """Whether the control plane named an absolute path outside the workspace, reached as root."""
        return system and path.startswith("/") and not PurePosixPath(path).is_relative_to(self._workspace.root)

    @contextmanager
    def _at(self, path: str, system: bool) -> Iterator[Tree]:
        """The tree to look in, with the rights to use there; failures as ProblemError."""
        beyond = self._beyond(path, system)
        try:
            with self.rights(as_root=beyond):
                yield self._everywhere if beyond else self._workspace
        except OutsideError as error:
            raise ProblemError(
                400,
                "PATH_OUTSIDE",
                f"{path!r} leads out of {self._workspace.root}.",
                "Name a path below the workspace, relative to it or absolute.",
            ) from error
        except OSError as error:
            raise from_os_error(error, path) from error
        except ValueError as error:
            raise ProblemError(400, "BAD_PATH", f"{path!r} is no path: {error}.") from error

    @contextmanager
    def rights(self, *, as_root: bool) -> Iterator[None]:
        """The calling thread's rights over files meanwhile: root's, or the sandbox's user's."""
        if as_root or self._credentials is None or self._credentials.uid == 0:
            yield
            return
        with file_access_as(self._credentials.uid, self._credentials.gid):
            yield


class Upload:
    """A file being written. Exactly one of ``commit`` and ``discard`` ends it."""

    def __init__(self, files: Files, place: Place, path: str, *, as_root: bool) -> None:
        mode = place.mode()
        self._files = files
        self._path = path
        self._as_root = as_root
        self._name = place.name
        self._shown = place.path
        self._kept = stat.S_IMODE(mode) if mode is not None else None
        self._temporary = f".{place.name[:60]}.{os.urandom(6).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._temporary, flags, 0o600, dir_fd=place.parent)
        self._parent = os.dup(place.parent)

    def write(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise from_os_error(error, self._path) from error

    def commit(self, mode: int | None) -> FileInfo:
        """Put the file in place at once. ``mode`` None keeps the replaced file's, else 0644."""
        if mode is None:
            mode = DEFAULT_MODE if self._kept is None else self._kept
        try:
            with self._files.rights(as_root=self._as_root):
                os.fchmod(self._fd, mode)
                os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
            info = _info(os.fstat(self._fd), self._shown, None)
        except OSError as error:
            self.discard()
            raise from_os_error(error, self._path) from error
        self._close()
        return info

    def discard(self) -> None:
        """Leave nothing behind."""
        try:
            with self._files.rights(as_root=self._as_root):
                os.unlink(self._temporary, dir_fd=self._parent)
        except FileNotFoundError:
            pass  # the sandbox's user removed it
        finally:
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._parent)


def _remove(place: Place, recursive: bool) -> None:
    mode = place.mode()
    if mode is None or not stat.S_ISDIR(mode):
        os.unlink(place.name, dir_fd=place.parent)
    elif recursive:
        import shutil  # only here, and it is slow to import

        shutil.rmtree(place.name, dir_fd=place.parent)
    else:
        os.rmdir(place.name, dir_fd=place.parent)


def _describe(folder: int, name: str, above: str) -> FileInfo | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else None
    except FileNotFoundError:
        return None  # removed meanwhile
    return _info(found, f"{above.rstrip('/')}/{name}", target)


def _info(found: os.stat_result, path: str, target: str | None) -> FileInfo:
    mode = found.st_mode
    return FileInfo(
        path=_shown(path),
        kind="symlink"
        if stat.S_ISLNK(mode)
        else "directory"
        if stat.S_ISDIR(mode)
        else "file"
        if stat.S_ISREG(mode)
        else "other",
        size=found.st_size,
        mode=f"{stat.S_IMODE(mode):04o}",
        modified_at=found.st_mtime,
        target=None if target is None else _shown(target),
    )


def _shown(path: str) -> str:
    """Names that are not UTF-8 are shown with U+FFFD, since JSON cannot carry their bytes."""
    return os.fsencode(path).decode("utf-8", "replace")
