"""Making, binding and destroying sandboxes, one idempotent step after the other.

Belongs here: what happens to one sandbox between its record and its readiness, and between draining and
gone. Does not belong here: whether to (planning), how on a given machine (runtime), building versions
(templates). Called by jobs; the binder also by the reaper.
"""

from controlplane.provisioning.labels import session_labels
from controlplane.provisioning.service import Provisioning, ProvisionTimes

__all__ = ["ProvisionTimes", "Provisioning", "session_labels"]
