"""Client of Warmpool: attach a session to a ready sandbox, run commands, move files.

Belongs here: everything a platform needs, on httpx and msgspec only. Does not belong here: anything of the
control plane, which this talks to over HTTP. The logic is written once, as flows without I/O (``effects``),
and carried out by two thin drivers, one blocking and one for asyncio.
"""

from warmpool.client import AsyncWarmpool, Warmpool
from warmpool.errors import (
    AuthenticationException,
    CapacityException,
    CommandExitException,
    CommandTimeoutException,
    ConflictException,
    ConnectionException,
    DeniedException,
    InvalidArgumentException,
    NotFoundException,
    QuotaException,
    RateLimitException,
    SandboxException,
    StreamBroken,
    TemplateException,
    TimeoutException,
    UnavailableException,
)
from warmpool.handles import AsyncCommandHandle, CommandHandle
from warmpool.result import CommandResult
from warmpool.sandbox import AsyncSandbox, Sandbox
from warmpool.types import FileInfo, Resources, Session
from warmpool.version import VERSION as __version__

__all__ = [
    "AsyncCommandHandle",
    "AsyncSandbox",
    "AsyncWarmpool",
    "AuthenticationException",
    "CapacityException",
    "CommandExitException",
    "CommandHandle",
    "CommandResult",
    "CommandTimeoutException",
    "ConflictException",
    "ConnectionException",
    "DeniedException",
    "FileInfo",
    "InvalidArgumentException",
    "NotFoundException",
    "QuotaException",
    "RateLimitException",
    "Resources",
    "Sandbox",
    "SandboxException",
    "Session",
    "StreamBroken",
    "TemplateException",
    "TimeoutException",
    "UnavailableException",
    "Warmpool",
    "__version__",
]
