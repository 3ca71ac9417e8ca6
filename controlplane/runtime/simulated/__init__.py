"""Sandboxes that exist as records only: for tests, load and the planner's benchmarks.

Belongs here: the runtime and the agent of simulated sandboxes over one shared world, their latency and
their injected failures, and the few commands they know. Does not belong here: pretending: what is not
simulated says so (exit 127). Called by bootstrap when the runtime is ``simulated``, and by tests.
"""

from controlplane.runtime.simulated.agent import SimulatedAgent
from controlplane.runtime.simulated.faults import Fault, FaultPlan, FaultRate, Faults
from controlplane.runtime.simulated.latency import LogNormal
from controlplane.runtime.simulated.runtime import SimulatedRuntime
from controlplane.runtime.simulated.world import World

__all__ = [
    "Fault",
    "FaultPlan",
    "FaultRate",
    "Faults",
    "LogNormal",
    "SimulatedAgent",
    "SimulatedRuntime",
    "World",
]
