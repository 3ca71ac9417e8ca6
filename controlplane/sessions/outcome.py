"""What a caller is told when an attach does not end with a session."""

from __future__ import annotations

from typing import NoReturn

from controlplane.errors import Conflict, NotFound, Permanent, Retryable
from controlplane.model.sandbox import Session

NEW_KEY = "The idempotency key, if there was one, belongs to this answer: use a new one to try again."


def refuse_quota(sessions_now: int) -> NoReturn:
    raise Retryable(
        "over_quota",
        f"This tenant has {sessions_now} sessions, as many as it may have at one time.",
        after_s=5.0,
        hint="End sessions that are no longer used, or ask an operator for a higher limit.",
    )


def refuse_full(waiting: int) -> NoReturn:
    raise Retryable("no_capacity", f"{waiting} sessions already wait for this pool; no more are queued.", after_s=10.0)


def refuse_ended(session: Session) -> NoReturn:
    """The session ended before it was attached, or before a repeat of its request came."""
    reason, detail = session.end_reason or "ended", session.end_detail or ""
    said = f" ({detail})" if detail else ""
    if session.attached_at is not None:
        raise ended(session)
    if reason in ("wait_timeout", "capacity"):
        raise Retryable(
            "no_capacity", f"No sandbox of {session.pool} became free in time{said}.", after_s=10.0, hint=NEW_KEY
        )
    if reason == "template_failed":
        raise Permanent(
            "template_failed",
            f"The template of {session.pool} can't be built{said}.",
            hint="Read its log with 'warmpool build logs', change the template, or ask for another build.",
        )
    if reason == "pool_deleted":
        raise NotFound("pool_not_found", f"Pool {session.pool} was deleted while the session waited.")
    if reason in ("sandbox_failed", "sandbox_lost"):
        raise Retryable("bind_failed", f"No sandbox of {session.pool} could be bound{said}.", after_s=5.0, hint=NEW_KEY)
    raise ended(session)


def ended(session: Session) -> Conflict:
    """A call on a session that is over."""
    detail = f" ({session.end_detail})" if session.end_detail else ""
    return Conflict(
        "session_ended",
        f"Session {session.id} has ended: {session.end_reason or 'unknown'}{detail}.",
        hint="Attach a new session.",
    )
