"""The few system calls that Python lacks: mount, umount, loop devices, keyrings. Blocking, each below a millisecond."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOATIME = 1, 2, 4, 1024
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_LOOP_CONFIG_SIZE, _LOOP_FLAGS_OFFSET = 304, 60

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def unmount(target: Path) -> None:
    """Take every mount off ``target``, at once even when it is in use; no mount there is success."""
    while _libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        pass
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOENT):
        raise OSError(number, os.strerror(number), str(target))


def mount_image(image: Path, target: Path) -> None:
    """Mount the ext4 file system in the file ``image``. Its loop device frees itself when unmounted, so a
    crash at any point leaks none. Raises OSError, ENOSPC when the host has no loop device left."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        device, handle = _attach(backing)
        try:
            flags = MS_NOSUID | MS_NODEV | MS_NOATIME
            mount(device, target, "ext4", flags, "noinit_itable")
        finally:
            os.close(handle)
    finally:
        os.close(backing)


def join_fresh_keyring() -> bool:
    """Give this thread, and what it starts from now on, an empty session keyring; False where that can't be."""
    number = _KEYCTL.get(platform.machine())
    return number is not None and int(_libc.syscall(number, _JOIN_SESSION_KEYRING, None)) >= 0


def _attach(backing: int) -> tuple[str, int]:
    config = bytearray(_LOOP_CONFIG_SIZE)
    struct.pack_into("=II", config, 0, backing, 0)
    struct.pack_into("=I", config, _LOOP_FLAGS_OFFSET, _LO_FLAGS_AUTOCLEAR)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        # Another process may take the number between the two calls; then the next one is asked for.
        for _ in range(64):
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            with contextlib.suppress(FileExistsError):
                if not Path(device).exists():
                    os.mknod(device, 0o60660, os.makedev(7, int(device[9:])))
            handle = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(handle, _LOOP_CONFIGURE, bytes(config))
                return device, handle
            except OSError as error:
                os.close(handle)
                if error.errno != errno.EBUSY:
                    raise
    finally:
        os.close(control)
    raise OSError(errno.ENOSPC, "no loop device is free")
