"""What sandboxd answered, as typed values or as this project's errors."""

from __future__ import annotations

from typing import TypeVar, cast

import msgspec

from agents.wire import Problem
from controlplane.agentclient.port import Door
from controlplane.errors import Conflict, Denied, NotFound, Permanent, Retryable, WarmpoolError

T = TypeVar("T")

# What these mean is for the control plane to say: it ends builds, blames keys or collects images by them.
_OURS = frozenset(
    {
        *("invalid_key", "over_quota", "store_unavailable", "fenced", "image_not_found"),
        *("build_ended", "build_not_found", "session_ended", "session_not_found"),
    }
)


def decode(payload: bytes, answer: type[T] | None, door: Door) -> T:
    """``payload`` as ``answer`` (None: nothing is expected). Permanent ``protocol_mismatch`` if it is not one."""
    if answer is None:
        return cast(T, None)
    try:
        return msgspec.json.decode(payload, type=answer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Permanent(
            "protocol_mismatch", f"Sandbox {door.sandbox} sent something that is not {answer.__name__}: {error}."
        ) from error


def problem(status: int, payload: bytes, door: Door) -> WarmpoolError:
    """The error that an answer of this status means. Text of the sandbox is cut: it is not trusted."""
    try:
        sent = msgspec.json.decode(payload, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        sent = Problem(code="sandbox_error", detail=f"Sandbox {door.sandbox} answered with status {status}.")
    code, detail, hint = sent.code[:80], sent.detail[:2000], sent.hint[:500]
    if code in _OURS:
        code = "sandbox_error"
    if status == 404:
        return NotFound(code, detail, hint=hint)
    if status == 409:
        return Conflict(code, detail, hint=hint)
    if status in (401, 403):
        return Denied(code, detail, hint=hint)
    if status == 429 or status >= 500:
        return Retryable(code, detail, hint=hint)
    return Permanent(code, detail, hint=hint)
