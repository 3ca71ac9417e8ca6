"""One request, with retries and the reading of its answer, as a flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

import msgspec

from warmpool.effects import Broken, Call, Flow, Now, Reply, Send, Silent, Sleep
from warmpool.errors import (
    ConnectionException,
    SandboxException,
    TimeoutException,
    UnavailableException,
    from_answer,
)

T = TypeVar("T")
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0


def request(call: Call[T]) -> Flow[T]:
    """The decoded answer. Retries a repeatable call on a broken connection and on 502, 503, 504, after what
    Retry-After says or a growing delay, until its patience is over; then raises what went wrong last."""
    until = (yield Now()) + call.patience_s
    attempt = 0
    while True:
        attempt += 1
        problem: SandboxException
        try:
            reply: Reply = yield Send(call)
        except Broken as broken:
            problem = unreachable(call, broken)
            again = not broken.final and (call.repeatable or not broken.sent)
        except Silent as silent:
            raise TimeoutException(
                f"{call.what} was not answered in time.",
                code="no_answer",
                hint="The server is slow or stuck; look at its /readyz, or allow more time with request_timeout.",
            ) from silent
        else:
            if 200 <= reply.status < 300:
                return decoded(call, reply.status, reply.body, reply.headers)
            problem = from_answer(reply.status, reply.headers, reply.body, call.what)
            passing = isinstance(problem, UnavailableException) and problem.code not in call.final
            again = call.repeatable and passing
        delay = delay_s(attempt, problem)
        if not again or (yield Now()) + delay > until:
            raise problem
        yield Sleep(delay)


def delay_s(attempt: int, problem: SandboxException | None) -> float:
    """Seconds before the next attempt: the server's wish, else doubling from 0.1 up to 5."""
    if problem is not None and problem.retry_after_s is not None:
        return max(problem.retry_after_s, FIRST_DELAY_S)
    return float(min(FIRST_DELAY_S * 2 ** min(attempt - 1, 10), LONGEST_DELAY_S))


def unreachable(call: Call[Any], broken: Broken) -> ConnectionException:
    if broken.sent:
        return ConnectionException(
            f"The connection broke before {call.what} was answered: {broken.detail}",
            code="connection_lost",
            hint="" if call.repeatable else "It may or may not have taken effect.",
        )
    return ConnectionException(
        f"Warmpool's API can't be reached: {broken.detail}",
        code="unreachable",
        hint="Is it running (`warmpool up`), and is WARMPOOL_API_URL right?",
    )


def decoded(call: Call[T], status: int, body: bytes, headers: Mapping[str, str]) -> T:
    """The answer as the type the call names. Raises SandboxException ``unexpected_answer`` for anything else,
    which is what a proxy's or another program's page is."""
    if call.answer is None:
        return cast("T", None)
    if call.answer is bytes:
        return cast("T", body)
    if status == 204 or not body:
        if status == 204 and call.empty_as is not None:
            return call.empty_as
        raise _unexpected(call, "it is empty")
    try:
        return msgspec.json.decode(body, type=call.answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        kind = headers.get("content-type", "no content type")
        raise _unexpected(call, f"{error} ({kind})") from error


def _unexpected(call: Call[Any], why: str) -> SandboxException:
    return SandboxException(
        f"The answer to {call.what} is not what Warmpool's API sends: {why}.",
        code="unexpected_answer",
        hint="Check that the URL is Warmpool's API, and that client and server are of matching versions.",
    )


def quietly(call: Call[Any]) -> Flow[None]:
    """A clean-up: tried briefly, and its own failure must not hide the error that led to it."""
    try:
        yield from request(replace(call, patience_s=2.0, timeout_s=5.0))
    except (SandboxException, Broken, Silent):
        return
