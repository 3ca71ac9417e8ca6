"""What a sandbox of every host runtime looks like from within: paths, its first process, its daemon's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from controlplane.runtime.port import SandboxSpec

AGENT = "/opt/warmpool"
CONFIG = "/run/warmpool/config"
DOOR_IN = "/run/warmpool/in"
DOOR_OUT = "/run/warmpool/out"
CA_BUNDLE = "/run/warmpool/ca.pem"
SPOOL = "/var/lib/warmpool"
ENGINE = "/var/lib/docker"

# Without site: the sandbox's own packages run nothing at the daemon's start (.pth, sitecustomize), and a
# damaged one cannot keep it from starting.
AGENT_ARGV = ("/usr/bin/python3", "-I", "-S", f"{AGENT}/run.py", f"{CONFIG}/sandboxd.json")
ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    "HOME=/root",
    # Programs that look at pid 1's environment to learn where they are.
    "container=warmpool",
)

_PROXY_PORT = 3128
_USER = {"name": "agent", "uid": 1000, "gid": 1000, "home": "/home/agent"}


def daemon_config(
    spec: SandboxSpec,
    *,
    listen: Mapping[str, Any],
    egress_socket: str,
    cgroups_version: int,
    cgroups: Mapping[str, str],
    ca_bundle: bool,
) -> bytes:
    """sandboxd.json. ``listen``: ``fd`` or ``path``. ``egress_socket``: name in the door out's directory.
    ``cgroups``: hierarchy → delegated directory inside, empty where none is."""
    return msgspec.json.encode(
        {
            "sandbox_id": spec.id,
            "key_hex": spec.door_key_hex,
            "listen": listen,
            "egress_socket": f"{DOOR_OUT}/{egress_socket}" if spec.egress else None,
            "proxy_port": _PROXY_PORT,
            "workspace": "/workspace",
            "docker": spec.docker,
            "user": _USER,
            "env": {"platform": dict(spec.platform_env), "template": dict(spec.template_env)},
            "cgroups": {"version": cgroups_version, "roots": dict(cgroups)} if cgroups else None,
            "ca_bundle": CA_BUNDLE if ca_bundle else None,
            "spool_dir": f"{SPOOL}/spool",
        }
    )
