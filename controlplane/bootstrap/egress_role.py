"""The egress gateway's process."""

from __future__ import annotations

import logging
import os
import sys

from controlplane.bases.registries import addresses_out_of_range, registries
from controlplane.bootstrap import adapters
from controlplane.settings import Settings

log = logging.getLogger(__name__)


def exec_egress(settings: Settings) -> None:
    """Become the egress gateway: it is a program of its own and shares nothing with this one."""
    control = settings.egress_control
    control.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    logs = settings.state_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "agents.egress", "--control", str(control)]
    argv += ["--doors-dir", str(settings.state_dir / "doors"), "--state-dir", str(settings.state_dir / "egress")]
    argv += ["--log-file", str(logs / "egress-audit.jsonl")]
    for network in _reachable(settings):
        argv += ["--reachable-network", network]
    os.execv(sys.executable, argv)


def _reachable(settings: Settings) -> list[str]:
    host = adapters.host_config(settings)
    own = addresses_out_of_range(registries(host))
    if own:
        log.warning("package registries of this host are not at public addresses; builds may reach %s", ", ".join(own))
    return [*settings.egress.reachable_networks, *own]
