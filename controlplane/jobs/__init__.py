"""What runs in workers: ids in, one call of one service out.

Belongs here: the functions that the queue names, and the process's context. Does not belong here: what they
do (provisioning, templates). Called by the queue's workers; ``configure`` by bootstrap before the first job.
"""

from controlplane.jobs.context import JobContext, configure, shut_down
from controlplane.jobs.functions import build_version, provision_sandbox, retire_sandbox

__all__ = [
    "JobContext",
    "build_version",
    "configure",
    "provision_sandbox",
    "retire_sandbox",
    "shut_down",
]
