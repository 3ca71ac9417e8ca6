"""The history of one simulated command as it stands at a moment: a pure function of its records."""

from __future__ import annotations

import math

from agents.wire import ExecEvent, ExecStatus
from agents.wire.messages import ExecReason
from controlplane.runtime.simulated.world import ExecEnd, ExecRecord

_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "TERM": 15}


def known_signal(name: str) -> bool:
    return name in _SIGNALS


def ends_at(record: ExecRecord, end: ExecEnd | None) -> float:
    """Epoch second of the end: by itself, by its time limit, or by an earlier end from outside."""
    own = record.started_at + record.course.duration_s
    if record.start.timeout_s is not None:
        own = min(own, record.started_at + record.start.timeout_s)
    return min(own, end.at) if end is not None else own


def history(record: ExecRecord, end: ExecEnd | None, now: float) -> list[ExecEvent]:
    """All events up to and with ``now``."""
    started, last = record.started_at, ends_at(record, end)
    events = [ExecEvent(seq=1, kind="state", at=started, state="running")]
    written = {"stdout": 0, "stderr": 0}
    for chunk in record.course.chunks:
        at = started + chunk.at_s
        if at > min(now, last):
            break
        size = len(chunk.text.encode())
        events.append(
            ExecEvent(
                seq=len(events) + 1,
                kind=chunk.stream,
                at=at,
                text=chunk.text,
                offset=written[chunk.stream],
                size=size,
            )
        )
        written[chunk.stream] += size
    if now >= last:
        for kind in ("exited", "closed"):
            seq = len(events) + 1
            events.append(ExecEvent(seq=seq, kind=kind, at=last, status=_status(record, end, written, seq, kind)))
    return events


def status(record: ExecRecord, end: ExecEnd | None, now: float) -> ExecStatus:
    events = history(record, end, now)
    if events[-1].status is not None:
        return events[-1].status
    written = {
        stream: sum(event.size or 0 for event in events if event.kind == stream) for stream in ("stdout", "stderr")
    }
    return _status(record, None, written, len(events), "running")


def next_event_at(record: ExecRecord, end: ExecEnd | None, now: float) -> float:
    """Epoch second of the first event after ``now``; infinity when the history is complete."""
    last = ends_at(record, end)
    if now >= last:
        return math.inf
    return min(
        [record.started_at + chunk.at_s for chunk in record.course.chunks if record.started_at + chunk.at_s > now]
        + [last]
    )


def _status(record: ExecRecord, end: ExecEnd | None, written: dict[str, int], seq: int, state: str) -> ExecStatus:
    start = record.start
    common = ExecStatus(
        id=start.id,
        state="running",
        last_seq=seq,
        started_at=record.started_at,
        stdout_bytes=written["stdout"],
        stderr_bytes=written["stderr"],
        background=start.background,
        command=(start.script if start.script is not None else " ".join(start.argv or []))[:200],
    )
    if state == "running":
        return common
    code, signal, reason = _ending(record, end)
    last = ends_at(record, end)
    fields = {name: getattr(common, name) for name in common.__struct_fields__}
    fields.update(state=state, code=code, signal=signal, reason=reason, duration_s=last - record.started_at)
    return ExecStatus(**fields)


def _ending(record: ExecRecord, end: ExecEnd | None) -> tuple[int, str | None, ExecReason]:
    last = ends_at(record, end)
    own = record.started_at + record.course.duration_s
    if last == own:
        return record.course.code, None, "exit"
    if end is not None and last == end.at:
        return 128 + _SIGNALS[end.signal], end.signal, "cancelled" if end.cancelled else "signal"
    return 128 + _SIGNALS["TERM"], "TERM", "timeout"
