"""The few system calls that Python has no name for."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_MS_REMOUNT = 32
_MS_BIND = 4096
_KEEP = ctypes.c_uint32(-1).value

_libc = ctypes.CDLL(None, use_errno=True)


def make_unreadable() -> None:
    """Other processes of the same user, root without CAP_SYS_PTRACE included, cannot read our memory."""
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def become_subreaper() -> None:
    """Orphans below us become our children, as they do for pid 1."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def remount_writable(path: str) -> None:
    _call("mount", None, os.fsencode(path), None, ctypes.c_ulong(_MS_REMOUNT | _MS_BIND), None)


@contextmanager
def file_access_as(uid: int, gid: int) -> Iterator[None]:
    """The calling thread reaches files as ``uid``: the kernel judges, not we. Other threads are unaffected.

    The file system ids are the thread's own, and leaving uid 0 there also drops the rights that
    override file modes until it is restored.
    """
    _set_fsid("setfsgid", gid)
    try:
        _set_fsid("setfsuid", uid)
        yield
    finally:
        _set_fsid("setfsuid", os.geteuid())
        _set_fsid("setfsgid", os.getegid())


def _set_fsid(name: str, value: int) -> None:
    function = getattr(_libc, name)
    function(value)
    # These calls report no error; asking for an impossible id returns the present one.
    if ctypes.c_uint32(function(_KEEP)).value != value:
        raise PermissionError(f"{name}({value}) was not carried out")


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
