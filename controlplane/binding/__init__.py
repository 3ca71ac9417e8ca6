"""From a claimed sandbox to an attached session.

Belongs here: bringing in what is known only at claim time, and trying the next sandbox when one turns out dead.
Does not belong here: the claim (store) and when to bind. Called by sessions (warm), provisioning (cold), and the
scheduler and reaper (what others left).
"""

from controlplane.binding.binder import MAX_CANDIDATES, Binder

__all__ = ["MAX_CANDIDATES", "Binder"]
