"""Builds everything: the only place that knows which adapter stands behind which port.

Belongs here: one builder per process role, from settings. Does not belong here: behaviour. Called by the cli
and the supervisor.
"""

from controlplane.bootstrap.operator import (
    destroy_everything,
    ensure_operator,
    examine,
    read_api_address,
    wait_for_store,
)
from controlplane.bootstrap.roles import exec_egress, run_scheduler, run_worker, serve
from controlplane.configuration import (
    credentials_file,
    load_settings,
    settings_environment,
    write_credentials,
)

__all__ = [
    "credentials_file",
    "destroy_everything",
    "ensure_operator",
    "examine",
    "exec_egress",
    "load_settings",
    "read_api_address",
    "run_scheduler",
    "run_worker",
    "serve",
    "settings_environment",
    "wait_for_store",
    "write_credentials",
]
