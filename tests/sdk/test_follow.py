"""Following a command over connections that break, without any I/O: the flow is driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.effects import Broken, Emit, Flow, Now, Open, Read, Reply, Send, Silent
from warmpool.errors import NotFoundException, StreamBroken
from warmpool.follow import follow
from warmpool.result import Heard, Transcript

_SILENT = object()
STATUS = {"id": "c", "state": "closed", "last_seq": 0, "started_at": 1.0, "code": 0, "reason": "exit", "cgroup": "v2"}
LIVE = {**STATUS, "state": "exited", "survivors": [7]}


def history(*texts: str, status: dict[str, Any] = STATUS) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"seq": 1, "kind": "state", "at": 1.0, "state": "running"}]
    offset = 0
    for text in texts:
        size = len(text.encode())
        events.append(
            {"seq": len(events) + 1, "kind": "stdout", "at": 1.0, "text": text, "offset": offset, "size": size}
        )
        offset += size
    events.append({"seq": len(events) + 1, "kind": "exited", "at": 1.0, "status": status})
    events.append({"seq": len(events) + 1, "kind": "closed", "at": 1.0, "status": status})
    return events


def encode(events: list[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


class Outside:
    """Answers a flow's effects. ``connection(after)`` gives the pieces of one connection; an exception among
    them is thrown in its place."""

    def __init__(self, connection: Callable[[int], list[Any]], pages: Callable[[int], bytes] | None = None) -> None:
        self._connection = connection
        self._pages = pages
        self._pieces: list[Any] = []
        self.opened: list[int] = []
        self.clock = 0.0

    def run(self, flow: Flow[Any]) -> list[Heard]:
        heard: list[Heard] = []
        answer: Any = None
        try:
            while True:
                effect = flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)
                answer = heard.append(effect.value) if isinstance(effect, Emit) else self.do(effect)
        except StopIteration:
            return heard

    def do(self, effect: Any) -> Any:
        self.clock += 0.01
        if isinstance(effect, Open):
            self.opened.append(int(effect.call.params["after"]))
            self._pieces = self._connection(self.opened[-1])
            first = self._pieces[0] if self._pieces else None
            return self._pieces.pop(0) if isinstance(first, (Reply, Silent)) else Reply(200, {}, b"")
        if isinstance(effect, Read):
            return self._pieces.pop(0) if self._pieces else None
        if isinstance(effect, Now):
            return self.clock
        if isinstance(effect, Send):
            assert self._pages is not None
            return Reply(200, {}, self._pages(int(effect.call.params["after"])))
        return None


@given(st.lists(st.text(max_size=8), max_size=8), st.lists(st.integers(1, 400), max_size=6), st.integers(1, 30))
def test_any_breaks_and_any_pieces_give_the_same_transcript(texts: list[str], cuts: list[int], piece: int) -> None:
    events, left = history(*texts), list(cuts)

    def connection(after: int) -> list[Any]:
        data = encode(events[after:])
        if left:
            # At least one event gets through, as long as connections bring anything the reader goes on.
            first = len(encode(events[after : after + 1]))
            data = data[: first + left.pop()]
        return [data[i : i + piece] for i in range(0, len(data), piece)]

    transcript = Transcript()
    heard = Outside(connection).run(follow("s", "c", transcript))
    assert [h.event.seq for h in heard] == [event["seq"] for event in events]
    assert transcript.stdout == "".join(texts)
    assert transcript.closed


def test_events_sent_again_after_a_resume_are_heard_once() -> None:
    events = history("a", "b")
    transcript = Transcript()
    outside = Outside(lambda after: [encode(events[:2]), Broken("cut", sent=True)] if not after else [encode(events)])
    assert [h.event.seq for h in outside.run(follow("s", "c", transcript))] == [1, 2, 3, 4, 5]
    assert outside.opened == [0, 2]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"<html>502</html>\n"],
        [b'{"seq": 1, "kind": "no such kind", "at": 1}\n'],
        [encode(history("a", "b")[2:])],
        [b'{"seq": 1, "kind": "stdout", "at": 1, "text": "b", "offset": 5, "size": 1}\n'],
        [Broken("reset by peer", sent=True)],
        [Silent()],
        [Reply(503, {}, b"")],
    ],
    ids=["ends", "not json", "odd kind", "numbers missing", "bytes missing", "reset", "never answers", "unavailable"],
)
def test_a_stream_that_brings_nothing_usable_is_given_up_with_an_error(pieces: list[Any]) -> None:
    transcript = Transcript()
    outside = Outside(lambda after: list(pieces))
    with pytest.raises(StreamBroken) as caught:
        outside.run(follow("s", "c", transcript))
    assert "commands.connect('c')" in caught.value.hint
    assert 3 <= len(outside.opened) <= 10
    assert transcript.stdout == ""


def test_a_command_that_is_silent_for_long_is_waited_for() -> None:
    events, connections = history("late"), iter(range(100))

    def connection(after: int) -> list[Any]:
        return [b"", _SILENT] if next(connections) < 30 else [encode(events)]

    class Quiet(Outside):
        def do(self, effect: Any) -> Any:
            answer = super().do(effect)
            return Silent("nothing came") if answer is _SILENT else answer

    transcript = Transcript()
    Quiet(connection).run(follow("s", "c", transcript))
    assert transcript.stdout == "late"


def test_a_gap_that_grew_between_two_connections_is_counted_once() -> None:
    first = [
        {"seq": 1, "kind": "stdout", "at": 1.0, "text": "aaaa", "offset": 0, "size": 4},
        {"seq": 2, "kind": "omitted", "at": 1.0, "stream": "stdout", "offset": 4, "size": 10},
    ]
    second = [
        {"seq": 5, "kind": "omitted", "at": 1.0, "stream": "stdout", "offset": 4, "size": 30},
        {"seq": 6, "kind": "stdout", "at": 1.0, "text": "zz", "offset": 34, "size": 2},
        {"seq": 7, "kind": "exited", "at": 1.0, "status": STATUS},
        {"seq": 8, "kind": "closed", "at": 1.0, "status": STATUS},
    ]
    transcript = Transcript()
    Outside(lambda after: [encode(second if after else first)]).run(follow("s", "c", transcript))
    assert transcript.omitted_bytes == 30
    assert transcript.stdout.startswith("aaaa\n[... 10 bytes not kept ...]\n")
    assert transcript.stdout.endswith("zz")


def test_a_foreground_command_is_over_when_only_what_it_left_behind_holds_its_output() -> None:
    events = history("hi", status=LIVE)[:-1]
    asked: list[int] = []

    def page(after: int) -> bytes:
        asked.append(after)
        return msgspec.json.encode({"events": [], "next_after": after, "complete": False})

    transcript = Transcript()
    outside = Outside(lambda after: [encode(events)], page)
    outside.run(follow("s", "c", transcript, to="exited"))
    assert transcript.result().stdout == "hi"
    assert transcript.result().survivors == (7,)
    assert asked


def test_what_a_left_over_process_writes_at_once_is_still_read() -> None:
    events = history("hi", status=LIVE)[:-1]
    late = {"seq": len(events) + 1, "kind": "stdout", "at": 1.0, "text": " late", "offset": 2, "size": 5}

    def page(after: int) -> bytes:
        return msgspec.json.encode(
            {"events": [late] if after < late["seq"] else [], "next_after": 9, "complete": False}
        )

    transcript = Transcript()
    Outside(lambda after: [encode(events)], page).run(follow("s", "c", transcript, to="exited"))
    assert transcript.stdout == "hi late"


def test_an_unknown_command_is_an_error_at_once() -> None:
    body = msgspec.json.encode({"code": "exec_not_found", "detail": "There is none."})
    outside = Outside(lambda after: [Reply(404, {}, body)])
    with pytest.raises(NotFoundException, match="There is none"):
        outside.run(follow("s", "c", Transcript()))
    assert outside.opened == [0]
