"""From what is observed to what should be done: pure functions, no I/O, no clock, no randomness.

Belongs here: how many sandboxes each pool should have, what must give way to what, and the reasons.
Does not belong here: reading or changing state (``loops.scheduler`` observes and applies) and guessing
demand (``forecast``). Called by the scheduler and by simulations.
"""

from controlplane.planning.plan import plan

__all__ = ["plan"]
