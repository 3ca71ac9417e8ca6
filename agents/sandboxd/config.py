"""The daemon's configuration: one JSON file, written by the runtime, read once at start.

The file holds the door's key. The runtime therefore keeps it out of reach of the sandbox's user;
``load`` refuses a file that this user could read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

import msgspec


class ConfigError(Exception):
    """The configuration cannot be used; the text says why and what to change."""


class Listen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of ``fd`` (a listening socket the host made) and ``path`` (a socket to make)."""

    fd: int | None = None
    path: str | None = None


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom commands and files of a session belong to."""

    name: str
    uid: int
    gid: int
    home: str


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two layers known before any session; names in ``platform`` cannot be changed by later ones."""

    platform: dict[str, str] = {}
    template: dict[str, str] = {}


class Cgroups(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directories delegated to the sandbox; the daemon makes one child of each for every command.

    Version 1: keys are controllers (memory, pids, cpu, cpuacct, freezer) and ``unified`` for the
    hierarchy beside them. Version 2: the one key ``v2``.
    """

    version: Literal[1, 2]
    roots: dict[str, str]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes. ``own_clock``: the sandbox has a clock of its own (a microVM), which bind corrects."""

    sandbox_id: str
    key_hex: str
    listen: Listen
    workspace: str
    user: User
    spool_dir: str
    egress_socket: str | None = None
    proxy_port: int = 3128
    docker: bool = False
    env: Environment = Environment()
    cgroups: Cgroups | None = None
    ca_bundle: str | None = None
    own_clock: bool = False
    max_file_bytes: int = 1 << 30

    def key(self) -> bytes:
        return bytes.fromhex(self.key_hex)


def load(path: Path) -> Config:
    """Raises ConfigError, also when the sandbox's user could read the key."""
    try:
        config = msgspec.json.decode(path.read_bytes(), type=Config)
        key = config.key()
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if len(key) < 16:
        raise ConfigError(f"{path}: key_hex must be at least 16 bytes (32 hex digits).")
    if (config.listen.fd is None) == (config.listen.path is None):
        raise ConfigError(f"{path}: listen takes exactly one of fd and path.")
    for name, value in (("workspace", config.workspace), ("spool_dir", config.spool_dir)):
        if not value.startswith("/"):
            raise ConfigError(f"{path}: {name} must be an absolute path, not {value!r}.")
    if os.geteuid() == 0 and config.user.uid != 0 and _reachable(path, config.user):
        raise ConfigError(
            f"{path}: user {config.user.name} could read the door's key; "
            "make the file 0600 or its directory 0700, owned by root."
        )
    return config


def _reachable(path: Path, user: User) -> bool:
    """Whether ``user`` may read ``path`` by the modes of it and of the directories above."""
    path = path.resolve()
    above = all(_allows(folder.stat(), user, stat.S_IXOTH) for folder in path.parents)
    return above and _allows(path.stat(), user, stat.S_IROTH)


def _allows(found: os.stat_result, user: User, other_bit: int) -> bool:
    if found.st_uid == user.uid:
        return bool(found.st_mode & (other_bit << 6))
    if found.st_gid == user.gid:
        return bool(found.st_mode & (other_bit << 3))
    return bool(found.st_mode & other_bit)
