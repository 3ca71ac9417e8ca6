"""The errors of the project: one root, five kinds, each with a code, a message and a way out.

Adapters wrap what their vendors raise and chain it; only ``api/errors.py`` turns these into HTTP.
A lack of capacity is a result, not an error of this module, until it reaches a caller.
"""

from __future__ import annotations


class WarmpoolError(Exception):
    """Root of all errors that Warmpool raises on purpose.

    ``code`` is stable and machine-readable (``pool_not_found``); ``message`` says what happened and
    what it means; ``hint`` says what to do, or is empty.
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message} {hint}")
        self.code = code
        self.message = message
        self.hint = hint


class Retryable(WarmpoolError):
    """The same call may succeed after ``after_s`` seconds."""

    def __init__(self, code: str, message: str, *, after_s: float = 1.0, hint: str = "") -> None:
        super().__init__(code, message, hint=hint)
        self.after_s = after_s


class Permanent(WarmpoolError):
    """The same call will fail again: the input or the environment must change."""


class Conflict(WarmpoolError):
    """The call contradicts the present state (wrong state, lost fence, key reused for another request)."""


class NotFound(WarmpoolError):
    """The thing named does not exist, or is not the caller's to see."""


class Denied(WarmpoolError):
    """The caller is not allowed to do this."""
