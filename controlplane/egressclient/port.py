"""What the control plane asks of an egress gateway."""

from __future__ import annotations

from typing import Protocol

from agents.wire.egress import DoorReport, DoorSpec, GatewayHealth
from controlplane.ids import SandboxId


class EgressGateway(Protocol):
    """Every call raises Retryable ``egress_unreachable`` when the gateway does not answer in time, and
    Retryable ``egress_failed`` when it answers that it cannot just now (a full disk). All are idempotent."""

    async def put_door(self, sandbox: SandboxId, spec: DoorSpec) -> DoorReport:
        """Opens the sandbox's door, or gives it another policy; connections that are no longer allowed are
        cut. The folder of the socket must exist.

        Raises Permanent (``bad_allow_entry``, ``invalid_door_id``, ``invalid_socket_path``, …) and Conflict
        (``directory_missing``, ``path_in_use``, ``bind_failed``).
        """
        ...

    async def get_door(self, sandbox: SandboxId) -> DoorReport:
        """Policy and counters. Raises NotFound ``door_not_found``."""
        ...

    async def list_doors(self) -> list[DoorReport]:
        """All doors, by id."""
        ...

    async def delete_door(self, sandbox: SandboxId) -> None:
        """Closes the door and cuts its connections; no error if there is none."""
        ...

    async def health(self) -> GatewayHealth: ...

    async def aclose(self) -> None: ...
