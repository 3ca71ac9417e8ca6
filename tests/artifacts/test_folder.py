"""Build logs in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.artifacts import FolderBuildLogs
from controlplane.errors import Permanent, Retryable
from controlplane.ids import BuildId

BUILD = BuildId("bd-1")


async def read_all(logs: FolderBuildLogs, step: str, limit: int = 7) -> tuple[str, list[tuple[int, int]]]:
    """The kept text, and the holes in it as (from, to)."""
    text, offset, holes = "", 0, []
    while True:
        chunk = await logs.read(BUILD, step, offset, limit)
        if not chunk.text:
            return text, holes
        if chunk.offset > offset:
            holes.append((offset, chunk.offset))
        text += chunk.text
        offset = chunk.next_offset


async def test_a_log_is_read_in_pieces_while_it_grows(tmp_path: Path) -> None:
    logs = FolderBuildLogs(tmp_path)
    assert (await logs.read(BUILD, "resolve", 0, 100)).text == ""
    await logs.append(BUILD, "resolve", "one\n")
    first = await logs.read(BUILD, "resolve", 0, 100)
    assert (first.offset, first.next_offset, first.text) == (0, 4, "one\n")
    await logs.append(BUILD, "resolve", "two\n")
    assert (await logs.read(BUILD, "resolve", first.next_offset, 100)).text == "two\n"
    await logs.append(BUILD, "clone", "x")
    await logs.append(BUILD, "setup-1", "y")
    assert await logs.steps(BUILD) == ["resolve", "clone", "setup-1"]
    await logs.restart(BUILD, "resolve")
    assert (await read_all(logs, "resolve"))[0] == ""


async def test_of_a_log_that_is_too_large_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    logs = FolderBuildLogs(tmp_path, max_bytes=4000)
    lines = [f"line {number:05d}\n" for number in range(2000)]
    for line in lines:
        await logs.append(BUILD, "setup-1", line)
    text, holes = await read_all(logs, "setup-1", limit=512)
    assert text.startswith(lines[0] + lines[1])
    assert text.endswith(lines[-2] + lines[-1])
    assert len(text) <= 4000
    ((begin, end),) = holes
    assert len(text) + (end - begin) == sum(len(line) for line in lines)


@given(pieces=st.lists(st.text(alphabet="aé€😀\n", max_size=12), max_size=12), limit=st.integers(1, 9))
async def test_what_is_read_is_what_was_written_whatever_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], limit: int
) -> None:
    logs = FolderBuildLogs(tmp_path_factory.mktemp("logs"))
    for piece in pieces:
        await logs.append(BUILD, "setup-1", piece)
    # A limit below one character would never get on: it gives at least the bytes of one.
    text, holes = await read_all(logs, "setup-1", limit=max(4, limit))
    assert (text, holes) == ("".join(pieces), [])


async def test_builds_are_listed_by_their_last_change_and_deleted(tmp_path: Path) -> None:
    logs = FolderBuildLogs(tmp_path)
    assert await logs.builds() == {}
    await logs.append(BUILD, "resolve", "x")
    assert set(await logs.builds()) == {BUILD}
    await logs.delete(BUILD)
    await logs.delete(BUILD)
    assert await logs.builds() == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", "", "A", "."])
async def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    logs = FolderBuildLogs(tmp_path / "logs")
    for call in (
        logs.append(BuildId(name), "resolve", "x"),
        logs.append(BUILD, name, "x"),
        logs.read(BuildId(name), "resolve", 0, 10),
        logs.delete(BuildId(name)),
    ):
        with pytest.raises(Permanent):
            await call


async def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(Retryable) as caught:
        await FolderBuildLogs(blocked).append(BUILD, "resolve", "x")
    assert caught.value.code == "log_not_written"
