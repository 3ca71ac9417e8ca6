"""The control plane's way to the egress gateway: opening, changing and closing the doors of sandboxes.

Belongs here: the port ``EgressGateway`` and its adapter over the gateway's control socket. Does not belong
here: what a policy should allow (the services decide that) and the gateway itself (``agents.egress``).
Called by provisioning, when it makes and retires sandboxes, and by the reaper.
"""

from agents.wire.egress import DeniedTarget, DoorReport, DoorSpec, GatewayHealth
from controlplane.egressclient.http import HttpEgressGateway
from controlplane.egressclient.port import EgressGateway

__all__ = [
    "DeniedTarget",
    "DoorReport",
    "DoorSpec",
    "EgressGateway",
    "GatewayHealth",
    "HttpEgressGateway",
]
