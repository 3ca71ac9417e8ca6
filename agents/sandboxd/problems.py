"""The one exception that becomes an answer: a status, a code for programs, a text for people."""

from __future__ import annotations

import errno

from agents.wire import Problem


class ProblemError(Exception):
    """Raised anywhere below a route; answered as ``Problem`` with HTTP ``status``."""

    def __init__(self, status: int, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.problem = Problem(code=code, detail=detail, hint=hint)


_BY_ERRNO: dict[int, tuple[int, str, str]] = {
    errno.ENOENT: (404, "FILE_NOT_FOUND", "There is no such file or directory."),
    errno.ENOTDIR: (400, "NOT_A_DIRECTORY", "A part of the path is not a directory."),
    errno.EISDIR: (400, "IS_A_DIRECTORY", "The path is a directory."),
    errno.EACCES: (403, "FILE_DENIED", "The sandbox's user may not do this."),
    errno.EPERM: (403, "FILE_DENIED", "The sandbox's user may not do this."),
    errno.EROFS: (403, "READ_ONLY", "The file system is read-only."),
    errno.ENOTEMPTY: (409, "NOT_EMPTY", "The directory is not empty; pass recursive=1 to delete all of it."),
    errno.ENAMETOOLONG: (400, "NAME_TOO_LONG", "A name in the path is too long."),
    errno.ELOOP: (400, "TOO_MANY_LINKS", "The path goes through too many links."),
    errno.ENOSPC: (507, "DISK_FULL", "The sandbox's disk is full."),
    errno.EDQUOT: (507, "DISK_FULL", "The sandbox's disk quota is used up."),
}


def from_os_error(error: OSError, path: str) -> ProblemError:
    """The problem for a failed file operation on ``path`` (as the caller named it)."""
    status, code, text = _BY_ERRNO.get(error.errno or 0, (500, "FILE_FAILED", str(error.strerror or error)))
    return ProblemError(status, code, f"{path!r}: {text}")
