"""Events of one command from a stream of lines, with every kind of cut detected."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from agents.wire import ExecEvent
from controlplane.errors import Retryable

MAX_LINE_BYTES = 8 * 1024 * 1024

_decoder = msgspec.json.Decoder(ExecEvent)


async def events_of(chunks: AsyncIterator[bytes], after: int) -> AsyncIterator[ExecEvent]:
    """Events with seq ``after`` + 1 on, without holes, to and with ``closed``.

    Retryable ``stream_broken`` when the lines end before it, skip one, or are not events: the caller
    resumes from the last seq that it saw."""
    rest = b""
    last = after
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise _broken(last, "a line is too long")
        for line in lines:
            if not line.strip():
                continue
            event = _event(line, last)
            last = event.seq
            yield event
            if event.kind == "closed":
                return
    raise _broken(last, "it ended before the command did")


def _event(line: bytes, last: int) -> ExecEvent:
    try:
        event = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _broken(last, f"a line is not an event ({error})") from error
    # An omitted event carries the number of the last event it stands for: only before it may numbers skip.
    if event.seq <= last or (event.kind != "omitted" and event.seq != last + 1):
        raise _broken(last, f"event {event.seq} followed {last}")
    return event


def _broken(last: int, why: str) -> Retryable:
    return Retryable(
        "stream_broken",
        f"The stream of events broke off after event {last}: {why}.",
        after_s=0.1,
        hint=f"Resume with after={last}.",
    )
