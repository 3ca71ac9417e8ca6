"""What runs all the time: the scheduler and the reaper.

Belongs here: when to look, and applying what was decided. Does not belong here: deciding (planning) and
slow work (jobs). Run by bootstrap; several processes may run them, one of which leads.
"""

from controlplane.loops.applier import Applier, ApplyTimes
from controlplane.loops.garbage import Garbage
from controlplane.loops.reality import Reality
from controlplane.loops.reaper import Reaper, ReaperTimes
from controlplane.loops.scheduler import Scheduler

__all__ = ["Applier", "ApplyTimes", "Garbage", "Reality", "Reaper", "ReaperTimes", "Scheduler"]
