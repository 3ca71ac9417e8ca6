"""The exceptions of the client: one root, one class per thing a caller may want to do about it.

Belongs here: the classes and the reading of an error answer (RFC 9457 problem details). Every exception
has ``code`` (stable, machine-readable), ``message``, ``hint`` (what to do, may be empty), ``status`` (HTTP,
None when no answer came) and ``retry_after_s`` (when the same call may succeed, None if it will not).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from warmpool.result import CommandResult

MAX_RETRY_AFTER_S = 3600.0


class SandboxException(Exception):
    """Root of everything this package raises on purpose."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "error",
        hint: str = "",
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.code = code
        self.hint = hint
        self.status = status
        self.retry_after_s = retry_after_s


class InvalidArgumentException(SandboxException):
    """The call can't work as it is: a bad name, size, path or field."""


class AuthenticationException(SandboxException):
    """No API key, or one the server does not know."""


class DeniedException(AuthenticationException):
    """The key is known but may not do this."""


class NotFoundException(SandboxException):
    """The thing named does not exist, or is not the caller's to see."""


class ConflictException(SandboxException):
    """The call contradicts the present state."""


class RateLimitException(SandboxException):
    """Too many calls; see ``retry_after_s``."""


class QuotaException(RateLimitException):
    """The tenant has as many sessions as it may have."""


class TimeoutException(SandboxException):
    """Something did not happen in time: a command, an answer."""


class UnavailableException(SandboxException):
    """The service can't do it now but may later; see ``retry_after_s``."""


class CapacityException(UnavailableException):
    """No sandbox: there is no room for another, or none was ready within the wait."""


class ConnectionException(UnavailableException):
    """The API can't be reached, or the connection broke before an answer."""


class TemplateException(SandboxException):
    """The template could not be built, so no sandbox can be made from it."""


class StreamBroken(SandboxException):
    """Output or events could not be read to their end, so what was read is not the whole."""


class CommandExitException(SandboxException):
    """A command ended with something else than 0; ``result`` has its output and reason."""

    def __init__(self, result: CommandResult) -> None:
        said = result.stderr.strip().splitlines() or result.stdout.strip().splitlines()
        tail = f": {said[-1][:200]}" if said else ""
        super().__init__(f"The command ended with {result.exit_code} ({result.reason}){tail}", code="command_failed")
        self.result = result
        self.stdout, self.stderr = result.stdout, result.stderr
        self.exit_code, self.error = result.exit_code, result.error


class CommandTimeoutException(CommandExitException, TimeoutException):
    """A command was ended because its time was over; ``result`` has what it wrote until then."""


class _ProblemBody(msgspec.Struct):
    code: str = ""
    title: str = ""
    detail: str = ""
    hint: str = ""
    retry_after_s: float | None = None
    errors: object = None


_BY_STATUS: Mapping[int, type[SandboxException]] = {
    400: InvalidArgumentException,
    401: AuthenticationException,
    403: DeniedException,
    404: NotFoundException,
    405: InvalidArgumentException,
    409: ConflictException,
    410: NotFoundException,
    413: InvalidArgumentException,
    422: InvalidArgumentException,
    429: RateLimitException,
    502: UnavailableException,
    503: UnavailableException,
    504: UnavailableException,
}
_BY_CODE: Mapping[str, type[SandboxException]] = {
    "no_capacity": CapacityException,
    "over_quota": QuotaException,
    "template_failed": TemplateException,
}


def from_answer(status: int, headers: Mapping[str, str], body: bytes, what: str) -> SandboxException:
    """The exception for an error answer to ``what`` (``GET /v1/pools``). A body that is not a problem
    document (a proxy's page) is named as such rather than shown whole."""
    kind = _BY_STATUS.get(status, SandboxException)
    after = _seconds(headers.get("retry-after"))
    try:
        problem = msgspec.json.decode(body, type=_ProblemBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _ProblemBody()
    if not (problem.code or problem.detail or problem.title):
        return kind(
            f"{what} was answered with status {status} and nothing that explains it.",
            code=f"http_{status}",
            hint="" if status >= 500 else "Check that the URL is Warmpool's API (WARMPOOL_API_URL).",
            status=status,
            retry_after_s=after,
        )
    own = _seconds(problem.retry_after_s)
    return _BY_CODE.get(problem.code, kind)(
        (problem.detail or problem.title) + _field_errors(problem.errors),
        code=problem.code or f"http_{status}",
        hint=problem.hint,
        status=status,
        retry_after_s=own if own is not None else after,
    )


def _field_errors(errors: object) -> str:
    """The ``errors`` list of a 422, as `` (field: message; …)``."""
    if not isinstance(errors, list):
        return ""
    said = []
    for error in errors[:10]:
        if not isinstance(error, dict):
            continue
        place = error.get("loc") or error.get("field") or ""
        place = ".".join(str(part) for part in place) if isinstance(place, list) else str(place)
        said.append(f"{place}: {error.get('msg') or error.get('message') or error.get('detail') or 'not valid'}")
    return f" ({'; '.join(said)})" if said else ""


def _seconds(value: object) -> float | None:
    """A Retry-After in seconds, bounded; None when missing, a date, or nonsense."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if math.isnan(seconds) or seconds < 0:
        return None
    return min(seconds, MAX_RETRY_AFTER_S)
