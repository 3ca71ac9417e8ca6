"""The history of one command: a single sequence of events, of which a bounded part is kept.

Kept are the first and the last half MiB of output and every state event. Output between is replaced,
per stream, by one ``omitted`` event that carries the number of the last event it stands for. Bytes are
kept raw and cut at character boundaries, so that decoding when read gives what decoding the whole
stream would have given.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from agents.wire import EventPage, ExecEvent, ExecStatus

HALF_BYTES = 512 * 1024
PIECE_BYTES = 16 * 1024
# What a kept event costs beside its bytes: a command that writes byte by byte is bounded as well.
EVENT_COST = 160

Stream = Literal["stdout", "stderr"]
Kind = Literal["state", "stdout", "stderr", "omitted", "exited", "closed"]


@dataclass(slots=True)
class _Record:
    seq: int
    kind: Kind
    at: float
    stream: Stream | None = None
    offset: int = 0
    size: int = 0
    data: bytes = b""
    state: str | None = None
    status: ExecStatus | None = None

    def event(self) -> ExecEvent:
        if self.kind in ("stdout", "stderr"):
            text = self.data.decode("utf-8", "replace")
            return ExecEvent(
                seq=self.seq, kind=self.kind, at=self.at, text=text, offset=self.offset, size=len(self.data)
            )
        if self.kind == "omitted":
            return ExecEvent(
                seq=self.seq, kind="omitted", at=self.at, stream=self.stream, offset=self.offset, size=self.size
            )
        return ExecEvent(seq=self.seq, kind=self.kind, at=self.at, state=self.state, status=self.status)


class History:
    """Written by one command, read by any number of callers, all on one event loop."""

    def __init__(self) -> None:
        self._settled: list[_Record] = []  # the head, gaps, and state events that fell out of the tail
        self._tail: deque[_Record] = deque()
        self._head_cost = 0
        self._tail_cost = 0
        self._served = 0
        self._unfinished: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self._readers: set[asyncio.Future[None]] = set()
        self.bytes_seen: dict[str, int] = {"stdout": 0, "stderr": 0}
        self.last_seq = 0
        self.complete = False
        self.lost = False

    @property
    def cost(self) -> int:
        """Bytes held, overhead included."""
        return self._head_cost + self._tail_cost

    def write(self, stream: Stream, data: bytes) -> None:
        """Append output. A trailing unfinished character waits for its rest."""
        data = self._unfinished[stream] + data
        cut = whole_characters(data)
        self._unfinished[stream] = data[cut:]
        self._append(stream, data[:cut])

    def finish(self, stream: Stream) -> None:
        """No more output on ``stream``: what is left of a character is given out as it is."""
        rest, self._unfinished[stream] = self._unfinished[stream], b""
        self._append(stream, rest)

    def note(
        self, kind: Literal["state", "exited", "closed"], *, state: str | None = None, status: ExecStatus | None = None
    ) -> None:
        """Append a state event; these are never dropped. ``closed`` ends the history."""
        self.last_seq += 1
        record = _Record(self.last_seq, kind, time.time(), state=state, status=status)
        (self._tail if self._tail else self._settled).append(record)
        self.complete = kind == "closed"
        self._wake()

    def forget(self) -> None:
        """Give up the events (memory is short); reading them says so from now on."""
        self._settled.clear()
        self._tail.clear()
        self._head_cost = self._tail_cost = 0
        self.lost = True

    def page(self, after: int, limit: int) -> EventPage:
        records = self._beyond(after)
        shown = records[:limit]
        if shown:
            self._served = max(self._served, shown[-1].seq)
        next_after = shown[-1].seq if shown else max(after, 0)
        return EventPage(
            events=[record.event() for record in shown],
            next_after=next_after,
            complete=self.complete and next_after >= self.last_seq,
        )

    async def changed(self, after: int, wait_s: float | None) -> None:
        """Return when there is an event beyond ``after``, the history is complete, or ``wait_s`` is over."""
        if self.last_seq > after or self.complete:
            return
        reader = asyncio.get_running_loop().create_future()
        self._readers.add(reader)
        try:
            async with asyncio.timeout(wait_s):
                await reader
        except TimeoutError:
            pass
        finally:
            self._readers.discard(reader)

    def _append(self, stream: Stream, data: bytes) -> None:
        start = 0
        while start < len(data):
            piece = data[start : start + PIECE_BYTES]
            piece = piece[: whole_characters(piece) or len(piece)]
            self._append_piece(stream, piece)
            start += len(piece)
        if data:
            self._wake()

    def _append_piece(self, stream: Stream, piece: bytes) -> None:
        offset = self.bytes_seen[stream]
        self.bytes_seen[stream] += len(piece)
        in_head = not self._tail and self._head_cost + len(piece) + EVENT_COST <= HALF_BYTES
        last = self._tail[-1] if self._tail else (self._settled[-1] if self._settled and in_head else None)
        joined = last is not None and last.kind == stream and last.seq > self._served
        if joined and last is not None and len(last.data) + len(piece) <= PIECE_BYTES:
            # Nobody has seen the last event yet, so it may still grow.
            last.data += piece
            cost = len(piece)
        else:
            self.last_seq += 1
            record = _Record(self.last_seq, stream, time.time(), stream, offset, 0, piece)
            (self._settled if in_head else self._tail).append(record)
            cost = len(piece) + EVENT_COST
        if in_head:
            self._head_cost += cost
        else:
            self._tail_cost += cost
            self._shed()

    def _shed(self) -> None:
        while self._tail_cost > HALF_BYTES:
            record = self._tail.popleft()
            if record.stream is None:
                self._settled.append(record)
                continue
            self._tail_cost -= len(record.data) + EVENT_COST
            self._omit(record)

    def _omit(self, record: _Record) -> None:
        """Let the gap's event of this stream stand for ``record`` too; it moves to the gap's end."""
        for back in (1, 2):
            if len(self._settled) < back or self._settled[-back].kind != "omitted":
                break
            if self._settled[-back].stream == record.stream:
                gap = self._settled.pop(-back)
                gap.seq, gap.at, gap.size = record.seq, record.at, gap.size + len(record.data)
                self._settled.append(gap)
                return
        self._settled.append(_Record(record.seq, "omitted", record.at, record.stream, record.offset, len(record.data)))

    def _beyond(self, after: int) -> list[_Record]:
        found: list[_Record] = []
        for part in (self._tail, self._settled):
            for record in reversed(part):
                if record.seq <= after:
                    found.reverse()
                    return found
                found.append(record)
        found.reverse()
        return found

    def _wake(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)


def whole_characters(data: bytes) -> int:
    """Length of the longest prefix of ``data`` that does not end inside a UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        need = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(data) - back if need > back else len(data)
    return len(data)
