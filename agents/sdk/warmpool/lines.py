"""Incremental parsers of the two stream formats: lines of JSON, and server-sent events. No I/O.

Whatever the sizes of the pieces that arrive, the same items come out. A last line without its end is never
an item: a connection that broke in the middle of a line must not pass for a shorter message.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_LINE_BYTES = 16 * 1024 * 1024


class LineTooLong(Exception):
    """A line is longer than any real one: the other side is not what it should be."""


class Lines:
    """Splits bytes at ``\\n`` (with or without ``\\r`` before it)."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._parts: list[bytes] = []
        self._held = 0
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by ``data``, without their ends. Raises LineTooLong."""
        first, *rest = data.split(b"\n")
        if not rest:
            self._hold(first)
            return []
        done = [b"".join([*self._parts, first]), *rest[:-1]]
        self._parts, self._held = [], 0
        self._hold(rest[-1])
        if any(len(line) > self._limit for line in done):
            raise LineTooLong
        return [line.removesuffix(b"\r") for line in done]

    def _hold(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self._held += len(part)
        if self._held > self._limit:
            raise LineTooLong


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """``id`` is the last one seen in the stream so far, as the format prescribes."""

    id: str
    kind: str
    data: str


class ServerEvents:
    """text/event-stream: ``id``, ``event`` and ``data`` fields; comments and unknown fields are passed over.

    ``last_id`` is where to resume; a block with an id and no data moves it without being an event.
    """

    def __init__(self) -> None:
        self._lines = Lines()
        self.last_id = ""
        self._id = ""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        found = []
        for raw in self._lines.feed(data):
            line = raw.decode("utf-8", "replace")
            if line:
                self._field(line)
                continue
            # Only a block that ended counts: resuming after one that was cut would lose it.
            self.last_id = self._id
            if self._data:
                found.append(ServerEvent(self.last_id, self._kind or "message", "\n".join(self._data)))
                self._kind, self._data = "", []
            else:
                self._kind = ""
        return found

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._id = value
