"""What is likely to be asked for: from arrivals to demand. Pure.

Belongs here: estimates of how many ready sandboxes a pool is worth, and where a number comes from. Does not
belong here: what is done about it (``planning``). Asked by the scheduler, once a pool and plan.
"""

from controlplane.forecast.port import Forecast
from controlplane.forecast.steady import Steady

__all__ = ["Forecast", "Steady"]
