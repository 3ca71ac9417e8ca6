"""The two drivers: they carry out the effects of a flow with httpx, blocking or with asyncio. No logic.

``run`` returns what a flow returns and gives emitted values to ``emit``; ``iterate`` yields emitted values.
An effect that fails, an interrupt or a cancellation is thrown into the flow, which may still clean up.
Importing this package imports httpx, so the rest of the SDK does so only when a client is made.
"""

from warmpool.drivers.asynchronous import AsyncDriver
from warmpool.drivers.blocking import SyncDriver

__all__ = ["AsyncDriver", "SyncDriver"]
