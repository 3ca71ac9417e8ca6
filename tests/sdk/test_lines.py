"""The incremental parsers give the same items however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.lines import Lines, LineTooLong, ServerEvent, ServerEvents


def cut(data: bytes, places: list[int]) -> list[bytes]:
    points = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(points)]


@given(st.lists(st.binary().map(lambda b: b.replace(b"\n", b"").rstrip(b"\r"))), st.lists(st.integers(0, 10_000)))
def test_lines_are_the_same_for_any_cutting(lines: list[bytes], places: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    parser = Lines()
    assert [line for piece in cut(data, places) for line in parser.feed(piece)] == lines


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000)))
def test_an_unfinished_last_line_is_never_an_item(data: bytes, places: list[int]) -> None:
    parser = Lines()
    found = [line for piece in cut(data, places) for line in parser.feed(piece)]
    assert len(found) == data.count(b"\n")


def test_a_line_without_end_is_refused_before_memory_runs_out() -> None:
    parser = Lines(limit=1000)
    with pytest.raises(LineTooLong):
        for _ in range(20):
            parser.feed(b"x" * 100)


def test_a_long_line_that_comes_whole_is_refused_as_well() -> None:
    with pytest.raises(LineTooLong):
        Lines(limit=10).feed(b"x" * 11 + b"\n")


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=20)


@given(st.lists(st.tuples(TEXT, TEXT.filter(bool), TEXT)), st.lists(st.integers(0, 10_000)), st.booleans())
def test_server_events_are_the_same_for_any_cutting(
    events: list[tuple[str, str, str]], places: list[int], carriage_returns: bool
) -> None:
    end = "\r\n" if carriage_returns else "\n"
    text = "".join(f": a comment{end}id: {i}{end}event: {k}{end}data: {d}{end}odd: x{end}{end}" for i, k, d in events)
    parser = ServerEvents()
    found = [item for piece in cut(text.encode(), places) for item in parser.feed(piece)]
    assert found == [ServerEvent(i, k, d) for i, k, d in events]


def test_a_block_with_an_id_alone_moves_the_place_to_resume_without_being_an_event() -> None:
    parser = ServerEvents()
    assert parser.feed(b"id: 17\n\n") == []
    assert parser.last_id == "17"


def test_an_event_that_was_cut_does_not_move_the_place_to_resume() -> None:
    parser = ServerEvents()
    parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert parser.last_id == "1"


def test_data_of_several_lines_is_joined() -> None:
    assert ServerEvents().feed(b"data: a\ndata: b\n\n") == [ServerEvent("", "message", "a\nb")]
