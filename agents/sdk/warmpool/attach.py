"""Attaching a session and waiting until its sandbox is bound, as flows."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from warmpool.effects import Call, Emit, Flow, Now, Sleep, given, params_of, path_of
from warmpool.errors import (
    CapacityException,
    InvalidArgumentException,
    SandboxException,
    TemplateException,
    TimeoutException,
    UnavailableException,
)
from warmpool.requests import delay_s, quietly, request
from warmpool.types import Resources, Session

# Longest time one request waits for a session; a proxy on the way may cut longer ones.
POLL_S = 20.0
PROGRESS_POLL_S = 1.0
# A session that got its sandbox just before its wait was over is given this long to be bound.
BINDING_S = 5.0
# Answers after which an idempotency key only ever gives the same answer.
_SPENT = frozenset({"no_capacity", "bind_failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """What to attach to, and how; None leaves the server's or the template's own value."""

    pool: str | None = None
    template: str | None = None
    ref: str | None = None
    resources: Resources | Mapping[str, object] | None = None
    ttl_s: float | None = None
    idle_timeout_s: float | None = None
    wait_s: float = 60.0
    labels: Mapping[str, str] | None = None
    env: Mapping[str, str] | None = None
    idempotency_key: str | None = None


def attach(wish: Attach, *, watched: bool = False) -> Flow[Session]:
    """An attached session. Emits the Session each time its progress was looked at (``watched``: every second).

    Requests carry an idempotency key, so a retry never makes a second session. When the caller is
    interrupted, or the wait is over, the session is ended. Raises CapacityException, QuotaException,
    TemplateException.
    """
    _check(wish)
    until = (yield Now()) + wish.wait_s
    while True:
        key = wish.idempotency_key or f"sdk-{secrets.token_hex(16)}"
        try:
            return (yield from _attach_once(wish, key, until, PROGRESS_POLL_S if watched else POLL_S))
        except UnavailableException as problem:
            # The key is spent with such an answer; with a key of the caller's own, that is for them to know.
            delay = delay_s(1, problem)
            if problem.code not in _SPENT or wish.idempotency_key or (yield Now()) + delay > until:
                raise
            yield Sleep(delay)


def _attach_once(wish: Attach, key: str, until: float, poll_s: float) -> Flow[Session]:
    session: Session | None = None
    try:
        session = yield from _requested(wish, key, poll_s)
        while session.state in ("waiting", "binding"):
            yield Emit(session)
            left = until - (yield Now())
            if left <= (0 if session.state == "waiting" else -BINDING_S):
                raise _too_late(session, wish.wait_s)
            session = yield from request(get_session(session.id, wait_s=min(max(left, 0.2), poll_s)))
    except BaseException as error:
        if session is None and not isinstance(error, (Exception, GeneratorExit)):
            session = yield from _find_out(wish, key)
        if session is not None and not isinstance(error, GeneratorExit):
            yield from quietly(end_session(session.id))
        raise
    if session.state == "ended":
        raise _ended(session)
    return session


def _requested(wish: Attach, key: str, hold_s: float) -> Flow[Session]:
    """Ask once for the session, and do not let that request wait longer than ``hold_s``: something on the way
    may cut it. The same key then finds the session that it made, with its place in the queue."""
    if wish.wait_s <= hold_s:
        return (yield from request(_call(wish, key)))
    try:
        return (yield from request(replace(_call(wish, key), wait_s=0.0, timeout_s=hold_s)))
    except TimeoutException:
        return (yield from request(_call(replace(wish, wait_s=0.0), key)))


def _find_out(wish: Attach, key: str) -> Flow[Session | None]:
    """The session that an interrupted request may have made, None if that can't be learnt."""
    try:
        return (yield from request(replace(_call(replace(wish, wait_s=0.0), key), patience_s=1.0, timeout_s=3.0)))
    except SandboxException:
        return None


def get_session(session: str, *, wait_s: float | None = None, tenant: str | None = None) -> Call[Session]:
    return Call(
        method="GET",
        path=path_of("sessions", session),
        answer=Session,
        params=params_of(wait_s=round(wait_s, 3) if wait_s else None, tenant=tenant),
        wait_s=wait_s or 0.0,
    )


def end_session(session: str, *, tenant: str | None = None) -> Call[Session]:
    """Idempotent: an unknown session answers with one that has the state ``ended`` and no tenant."""
    return Call(
        method="DELETE",
        path=path_of("sessions", session),
        answer=Session,
        params=params_of(tenant=tenant),
        empty_as=Session(id=session, state="ended"),
    )


def keep_alive(session: str, ttl_s: float | None) -> Call[Session]:
    return Call(method="POST", path=path_of("sessions", session, "keepalive"), answer=Session, body=given(ttl_s=ttl_s))


def _call(wish: Attach, key: str) -> Call[Session]:
    body = given(
        pool=wish.pool,
        template=wish.template,
        ref=wish.ref,
        resources=wish.resources,
        ttl_s=wish.ttl_s,
        idle_timeout_s=wish.idle_timeout_s,
        wait_s=wish.wait_s,
        labels=wish.labels or None,
        env=wish.env or None,
    )
    return Call(
        method="POST",
        path=path_of("sessions"),
        answer=Session,
        body=body,
        headers={"Idempotency-Key": key},
        wait_s=wish.wait_s,
        patience_s=max(wish.wait_s, 5.0),
        final=_SPENT,
    )


def _check(wish: Attach) -> None:
    if (wish.pool is None) == (wish.template is None):
        raise InvalidArgumentException(
            "Say either a pool or a template to attach to.",
            code="invalid_attach",
            hint='Sandbox.create("POOL") or Sandbox.create(template="TEMPLATE").',
        )
    if wish.pool is not None and (wish.ref is not None or wish.resources is not None):
        raise InvalidArgumentException(
            "A pool's ref and resources are fixed.", code="invalid_attach", hint="Name its template with them instead."
        )
    if not 0 <= wish.wait_s < float("inf"):
        raise InvalidArgumentException("wait is a number of seconds, 0 or more.", code="invalid_wait")


def _too_late(session: Session, wait_s: float) -> CapacityException:
    place = session.queue
    where = "" if place is None or place.position is None else f" It was number {place.position + 1} in the queue."
    return CapacityException(
        f"No sandbox of {session.pool} was ready within {wait_s:g} s.{where}",
        code="wait_timeout",
        hint="Wait longer (wait=…), or raise the pool's min_ready or max_total.",
    )


def _ended(session: Session) -> SandboxException:
    """Why a session ended before it was attached, as an exception."""
    reason, detail = session.end_reason or "ended", session.end_detail or ""
    if reason == "template_failed":
        return TemplateException(
            f"The template of {session.pool} can't be built: {detail or 'see its build log'}",
            code=reason,
            hint="Read the log with `warmpool build logs`.",
        )
    kind = CapacityException if reason in ("capacity", "wait_timeout") else SandboxException
    return kind(f"Session {session.id} ended before it was attached ({reason}). {detail}".strip(), code=reason)
