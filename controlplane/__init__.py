"""The control plane of Warmpool.

Keeps the right number of ready sandboxes, hands one over in milliseconds, and explains every
hit and miss. The daemons that run inside or beside sandboxes live in ``agents``.
"""

__version__ = "0.1.0"
