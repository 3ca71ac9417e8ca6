"""Pools as tenants and operators see them: put, delete, pin, explain.

Belongs here: checking what a pool may be, and reading why it is sized as it is. Does not belong here: sizing
it (planning) and filling it (the scheduler). Called by the API.
"""

from controlplane.pool.service import Explanation, PoolService

__all__ = ["Explanation", "PoolService"]
