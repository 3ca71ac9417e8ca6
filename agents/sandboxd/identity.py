"""Whom the sandbox's user is to the kernel: ids and groups, read from the sandbox's own files."""

from __future__ import annotations

import os
from pathlib import Path

from agents.sandboxd.config import User
from agents.sandboxd.spawn import Credentials

DOCKER_GROUP = "docker"


def credentials_of(user: User, *, docker: bool, group_file: Path = Path("/etc/group")) -> Credentials | None:
    """Credentials to run as; None if the daemon is not root and so can only be whom it is.

    Groups are those that list the user by name, and docker's if there is an engine.
    """
    if os.geteuid() != 0:
        return None
    groups = {user.gid}
    for name, gid, members in _groups(group_file):
        if user.name in members or (docker and name == DOCKER_GROUP):
            groups.add(gid)
    return Credentials(uid=user.uid, gid=user.gid, groups=tuple(sorted(groups)))


def group_id(name: str, group_file: Path = Path("/etc/group")) -> int | None:
    return next((gid for found, gid, _ in _groups(group_file) if found == name), None)


def _groups(file: Path) -> list[tuple[str, int, list[str]]]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields = [line.split(":") for line in lines]
    return [(f[0], int(f[2]), f[3].split(",")) for f in fields if len(f) >= 4 and f[2].isdigit()]
