"""Reading streams to their end, over any number of connections, as flows.

A stream that breaks is taken up after the last number seen. It is given up, with StreamBroken, when several
connections in a row bring nothing new, or bring something that can't be: a reader is told that what it has
is not the whole, and never given a part for the whole.
"""

from __future__ import annotations

import msgspec

from warmpool.effects import Broken, Call, Emit, Flow, Now, Open, Read, Reply, Shut, Silent, Sleep, params_of, path_of
from warmpool.errors import ConnectionException, SandboxException, StreamBroken, from_answer
from warmpool.lines import Lines, LineTooLong, ServerEvents
from warmpool.requests import delay_s, request, unreachable
from warmpool.result import Heard, Transcript
from warmpool.types import Event, EventPage, ExecEvent

MAX_FRUITLESS = 5
# A connection without a byte for this long is opened anew: a half-open one would never end by itself.
IDLE_S = 15.0
# The stream of events sends a sign of life every 15 seconds.
EVENTS_IDLE_S = 45.0
# How long a finished command's output is read on when processes it left behind still hold it.
LINGER_S = 0.25
_EVENT = msgspec.json.Decoder(ExecEvent)


class _Unfit(Exception):
    """What came is not what the stream's format says; the connection is given up."""


def follow(session: str, command: str, transcript: Transcript, *, to: str = "closed") -> Flow[None]:
    """Emit what is Heard of a command after ``transcript.after``, each once and in order, and add them to it.

    ``to``: ``closed`` reads until its output is at an end; ``exited`` stops soon after its first process
    ended, even when something it started still holds its output. Raises StreamBroken.
    """
    fruitless = 0
    while not transcript.closed:
        before, why = transcript.after, "the connection ended early"
        try:
            if (yield from _stream_once(session, command, transcript, to)):
                return
        except Broken as broken:
            why = broken.detail
        except _Unfit as unfit:
            why = str(unfit)
        except Silent:
            if to == "exited" and transcript.status is not None:
                return
            why, fruitless = "nothing came", fruitless - 1
        except ConnectionException as problem:
            why = problem.message
        yield Shut()
        fruitless = 1 if transcript.after > before else fruitless + 1
        if fruitless > MAX_FRUITLESS:
            raise StreamBroken(
                f"The output of command {command} could not be read beyond event {transcript.after}: {why}.",
                code="stream_broken",
                hint=f"It may still run; read on with commands.connect({command!r}).",
            )
        yield Sleep(delay_s(fruitless, None))


def _stream_once(session: str, command: str, transcript: Transcript, to: str) -> Flow[bool]:
    """One connection. True when reading is done; False when the connection ended early."""
    if to == "exited" and _may_linger(transcript):
        yield from _linger(session, command, transcript)
        return True
    call = Call(
        method="GET",
        path=path_of("sessions", session, "exec", command, "stream"),
        answer=bytes,
        params=params_of(after=transcript.after),
        accept="application/x-ndjson",
    )
    yield from _opened(call, f"The output of command {command}", IDLE_S)
    lines = Lines()
    while (data := (yield Read())) is not None:
        for event in _events(lines, data):
            if event.seq <= transcript.after:
                continue
            if not transcript.follows(event):
                raise _Unfit(f"event {event.seq} came after {transcript.after}")
            yield Emit(Heard(event, transcript.add(event)))
            if event.kind == "closed":
                yield Shut()
                return True
        if to == "exited" and _may_linger(transcript):
            yield Shut()
            yield from _linger(session, command, transcript)
            return True
    return False


def _may_linger(transcript: Transcript) -> bool:
    """Whether the command has ended but its output may be held open by what it left behind."""
    status = transcript.status
    return status is not None and not transcript.closed and (bool(status.survivors) or status.cgroup == "unavailable")


def _linger(session: str, command: str, transcript: Transcript) -> Flow[None]:
    until = (yield Now()) + LINGER_S
    while not transcript.closed:
        left = until - (yield Now())
        if left <= 0:
            return
        call = Call(
            method="GET",
            path=path_of("sessions", session, "exec", command, "events"),
            answer=EventPage,
            params=params_of(after=transcript.after, wait_s=round(left, 3)),
            wait_s=left,
        )
        page = yield from request(call)
        for event in page.events:
            if event.seq > transcript.after and transcript.follows(event):
                yield Emit(Heard(event, transcript.add(event)))


def _events(lines: Lines, data: bytes) -> list[ExecEvent]:
    try:
        return [_EVENT.decode(line) for line in lines.feed(data) if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError, LineTooLong) as error:
        raise _Unfit(f"a line is not an event ({error or 'too long'})") from error


def _opened(call: Call[bytes], subject: str, idle_s: float) -> Flow[None]:
    """Open a stream. Raises Broken for what may pass, else the error that was answered."""
    try:
        reply: Reply = yield Open(call, idle_s)
    except Silent as silent:
        raise Broken("no answer came", sent=True) from silent
    if reply.status == 200:
        return
    problem = from_answer(reply.status, reply.headers, reply.body, call.what)
    if reply.status in (502, 503, 504):
        raise Broken(problem.message, sent=True)
    if reply.status == 410:
        raise StreamBroken(f"{subject} can't be read: {problem.message}", code=problem.code, hint=problem.hint)
    raise problem


def follow_events(after: str, kind: str | None, tenant: str | None) -> Flow[None]:
    """Emit the control plane's Events as they happen, after the id ``after``. Ends only by an error."""
    fruitless, last = 0, after
    while True:
        call = Call(
            method="GET",
            path=path_of("events"),
            answer=bytes,
            params=params_of(after=last, kind=kind, tenant=tenant, follow=1),
            headers={"Last-Event-ID": last} if last not in ("", "$") else {},
            accept="text/event-stream",
        )
        problem: SandboxException = ConnectionException("The stream of events ended.", code="connection_lost")
        try:
            yield from _opened(call, "The stream of events", EVENTS_IDLE_S)
            parser = ServerEvents()
            while (data := (yield Read())) is not None:
                for item in parser.feed(data):
                    event = msgspec.json.decode(item.data, type=Event)
                    last, fruitless = item.id or event.id or last, 0
                    yield Emit(event)
                last = parser.last_id or last
        except Broken as broken:
            problem = unreachable(call, broken)
        except Silent:
            fruitless -= 1
        except (msgspec.DecodeError, LineTooLong) as error:
            problem = StreamBroken(f"An event can't be read: {error}.", code="unexpected_answer")
        yield Shut()
        fruitless += 1
        if fruitless > MAX_FRUITLESS:
            raise StreamBroken(
                f"Events could not be read beyond {last!r}: {problem.message}",
                code="stream_broken",
                hint=f"Read on from there with after={last!r}.",
            )
        yield Sleep(delay_s(fruitless, problem))
