"""The history of a command: what is kept, how it is numbered, how it is decoded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.sandboxd.output import HALF_BYTES, History, whole_characters
from agents.wire import ExecEvent


def everything(history: History) -> list[ExecEvent]:
    return history.page(0, 10**9).events


def text_of(events: list[ExecEvent], stream: str) -> str:
    return "".join(event.text or "" for event in events if event.kind == stream)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_split_decodes_as_the_whole_does(pieces: list[bytes]) -> None:
    history = History()
    for piece in pieces:
        history.write("stdout", piece)
        history.page(0, 1000)  # seen, so that later output cannot join it
    history.finish("stdout")
    assert text_of(everything(history), "stdout") == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(), st.integers(0, 3))
def test_a_cut_never_splits_a_character(text: str, missing: int) -> None:
    data = text.encode()[: len(text.encode()) - missing]
    data[: whole_characters(data)].decode()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.integers(1, 200_000), st.booleans()), max_size=40))
def test_every_byte_is_either_kept_or_counted_as_omitted(writes: list[tuple[str, int, bool]]) -> None:
    history = History()
    for stream, size, look in writes:
        history.write(stream, b"x" * size)  # type: ignore[arg-type]
        if look:
            history.page(history.last_seq - 1, 10)
    events = everything(history)
    for stream in ("stdout", "stderr"):
        covered = 0
        for event in events:
            if event.kind == stream or (event.kind == "omitted" and event.stream == stream):
                assert event.offset == covered
                covered += event.size or 0
        assert covered == history.bytes_seen[stream]
    assert history.cost <= 2 * HALF_BYTES
    assert [event.seq for event in events] == sorted({event.seq for event in events})


def test_single_bytes_are_bounded_as_well() -> None:
    history = History()
    for _ in range(100_000):
        history.write("stdout", b"x")
        history.page(history.last_seq - 1, 1)  # seen at once: each stays an event of its own
    assert history.cost <= 2 * HALF_BYTES
    assert len(everything(history)) < 10_000


def test_unread_output_is_joined_and_read_output_never_changes() -> None:
    history = History()
    history.write("stdout", b"a")
    history.write("stdout", b"b")
    assert [event.text for event in everything(history)] == ["ab"]
    history.write("stdout", b"c")
    assert [event.text for event in everything(history)] == ["ab", "c"]


def test_state_events_survive_a_flood_after_them() -> None:
    history = History()
    history.note("state", state="running")
    history.write("stdout", b"x" * 3_000_000)
    history.note("state", state="exited")
    history.write("stdout", b"y" * 3_000_000)
    events = everything(history)
    assert [event.state for event in events if event.kind == "state"] == ["running", "exited"]
    assert [event.seq for event in events] == sorted(event.seq for event in events)
