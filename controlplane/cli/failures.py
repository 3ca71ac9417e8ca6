"""Errors as people and programs see them: what happened, what it means, what to do, and an exit code."""

from __future__ import annotations

import json
import sys

from controlplane.cli.declaration import DeclarationError
from controlplane.errors import WarmpoolError
from warmpool import errors

ERROR, USAGE, NOT_FOUND, DENIED, RETRY, TIMED_OUT = 1, 2, 3, 4, 5, 124

# The first class that fits decides.
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.NotFoundException, NOT_FOUND),
    (errors.AuthenticationException, DENIED),
    (errors.TimeoutException, TIMED_OUT),
    (errors.UnavailableException, RETRY),
    (errors.RateLimitException, RETRY),
    (errors.InvalidArgumentException, USAGE),
    (DeclarationError, USAGE),
)


def is_usage_error(error: Exception) -> bool:
    """Whether typer itself reports it (a missing argument, an unknown option), with the usage line."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def exit_code(error: Exception) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ERROR)


def report(error: Exception, *, as_json: bool) -> int:
    """Print the error to standard error, and with ``as_json`` as JSON to standard output. Its exit code."""
    code, message, hint, retry_after_s = _told(error)
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    if retry_after_s is not None:
        print(f"  The same may succeed in {retry_after_s:g} s.", file=sys.stderr)
    if as_json:
        document = {"code": code, "message": message, "hint": hint, "retry_after_s": retry_after_s}
        print(json.dumps({"error": document}, indent=2))
    return exit_code(error)


def _told(error: Exception) -> tuple[str, str, str, float | None]:
    if isinstance(error, errors.SandboxException):
        return error.code, error.message, error.hint, error.retry_after_s
    if isinstance(error, WarmpoolError):
        return error.code, error.message, error.hint, None
    if isinstance(error, DeclarationError):
        return "invalid_file", str(error), "Nothing was changed.", None
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return "os_error", f"{where}{error.strerror or error}", "", None
    return "fault", f"{type(error).__name__}: {error}", "This is a fault of warmpool; --debug shows where.", None
