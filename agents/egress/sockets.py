"""Listening Unix sockets that appear at their path in one step.

A socket is made under a temporary name, given its mode, and renamed: nobody can connect before the mode is
right, a stale socket is replaced without a gap, and only a socket is ever replaced. All names are taken
relative to a descriptor of the directory, so paths longer than the kernel's 107 bytes work too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

BACKLOG = 512


class BindError(Exception):
    """The socket cannot be made. ``code``: ``directory_missing``, ``path_in_use`` or ``bind_failed``."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSocket:
    """A listening socket and what identifies its name in the file system."""

    path: Path
    sock: socket.socket
    device: int
    inode: int

    def stands(self) -> bool:
        """Whether ``path`` still names this socket."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def unlink(self) -> None:
        """Removes the name if it is still this socket's."""
        if self.stands():
            with contextlib.suppress(OSError):
                self.path.unlink()


def bind_listening(path: Path, *, mode: int) -> BoundSocket:
    """A listening, non-blocking socket at ``path``. Raises BindError."""
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        detail = f"{path.parent} is not a directory; make it before the door."
        raise BindError("directory_missing", detail) from error
    except OSError as error:
        raise BindError("bind_failed", f"{path.parent} cannot be opened: {error.strerror}.") from error
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        found = _bind_in(directory, path, sock, mode)
    except OSError as error:
        sock.close()
        raise BindError("bind_failed", f"{path} cannot be bound: {error.strerror}.") from error
    except BindError:
        sock.close()
        raise
    finally:
        os.close(directory)
    return BoundSocket(path=path, sock=sock, device=found.st_dev, inode=found.st_ino)


def _bind_in(directory: int, path: Path, sock: socket.socket, mode: int) -> os.stat_result:
    _check_replaceable(directory, path)
    new = f".{path.name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    # Nobody but this user can connect until the mode is set: the directory may be a shared one.
    before = os.umask(0o177)
    try:
        sock.bind(f"/proc/self/fd/{directory}/{new}")
    finally:
        os.umask(before)
    sock.listen(BACKLOG)
    os.chmod(new, mode, dir_fd=directory)
    found = os.stat(new, dir_fd=directory, follow_symlinks=False)
    os.replace(new, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    return found


def _check_replaceable(directory: int, path: Path) -> None:
    try:
        found = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BindError("path_in_use", f"{path} exists and is not a socket; it is left as it is.")
