"""Files in and out: whole or not at all, inside the workspace or not at all."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import httpx
import pytest

from agents.wire import FileInfo, FileList
from tests.sandboxd.daemon import Daemon, decoded, eventually, problem, running


async def put(daemon: Daemon, path: str, content: bytes, subject: str = "system", **query: str) -> httpx.Response:
    return await daemon.call("PUT", "/v1/files", subject, params={"path": path, **query}, content=content)


async def get(daemon: Daemon, path: str, subject: str = "system") -> httpx.Response:
    return await daemon.call("GET", "/v1/files", subject, params={"path": path})


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_bytes_come_back_as_they_went_in(daemon: Daemon) -> None:
    content = os.urandom(3_000_000) + b"\r\n\0"
    info = decoded(await put(daemon, "a/b/c.bin", content), FileInfo)
    assert (info.path, info.kind, info.size) == (f"{daemon.workspace}/a/b/c.bin", "file", len(content))
    assert (await get(daemon, f"{daemon.workspace}/a/b/c.bin")).content == content
    assert (await daemon.run("wc -c < a/b/c.bin; echo x >> a/b/c.bin")).stdout == f"{len(content)}\n"
    assert [path.name for path in (daemon.workspace / "a/b").iterdir()] == ["c.bin"], "no temporary file stays"


async def test_an_empty_file_is_a_file(daemon: Daemon) -> None:
    assert decoded(await put(daemon, "empty", b""), FileInfo).size == 0
    assert (await get(daemon, "empty")).content == b""


async def test_modes_are_set_kept_and_defaulted(daemon: Daemon) -> None:
    assert decoded(await put(daemon, "f", b"1"), FileInfo).mode == "0644"
    assert decoded(await put(daemon, "f", b"2", mode="0755"), FileInfo).mode == "0755"
    assert decoded(await put(daemon, "f", b"3"), FileInfo).mode == "0755"
    assert problem(await put(daemon, "f", b"4", mode="u+s")) == (400, "bad_request")
    assert problem(await put(daemon, "f", b"4", mode="4755")) == (400, "bad_request")


async def test_a_write_through_a_link_keeps_the_link(daemon: Daemon) -> None:
    await put(daemon, "real", b"old", mode="0755")
    (daemon.workspace / "link").symlink_to("real")
    (daemon.workspace / "absolute").symlink_to(daemon.workspace / "real")
    await put(daemon, "link", b"new")
    assert (daemon.workspace / "link").is_symlink()
    assert (daemon.workspace / "real").read_bytes() == b"new"
    assert (daemon.workspace / "real").stat().st_mode & 0o777 == 0o755
    assert (await get(daemon, "absolute")).content == b"new"


async def test_a_listing_describes_every_kind(daemon: Daemon) -> None:
    await daemon.run("mkdir d; echo hi > f; ln -s f l; mkfifo p; touch $'b\\xe9'")
    listed = decoded(await daemon.call("GET", "/v1/files/list"), FileList)
    found = {entry.path.rpartition("/")[2]: entry for entry in listed.entries}
    assert {name: entry.kind for name, entry in found.items()} == {
        "b\ufffd": "file",
        "d": "directory",
        "f": "file",
        "l": "symlink",
        "p": "other",
    }
    assert (found["f"].size, found["l"].target, listed.path) == (3, "f", str(daemon.workspace))
    assert problem(await daemon.call("GET", "/v1/files/list?path=f")) == (400, "NOT_A_DIRECTORY")
    assert problem(await daemon.call("GET", "/v1/files/list?path=none")) == (404, "FILE_NOT_FOUND")


async def test_deleting_is_idempotent_and_takes_a_tree_only_when_asked(daemon: Daemon) -> None:
    await put(daemon, "d/e/f", b"x")
    assert problem(await daemon.call("DELETE", "/v1/files?path=d")) == (409, "NOT_EMPTY")
    for _ in range(2):
        assert (await daemon.call("DELETE", "/v1/files?path=d&recursive=1")).status_code == 204
    assert (await daemon.call("DELETE", "/v1/files?path=no/such/thing")).status_code == 204
    assert problem(await daemon.call("DELETE", "/v1/files?path=.&recursive=1")) == (400, "IS_ROOT")
    assert daemon.workspace.is_dir()


async def test_deleting_a_link_leaves_what_it_points_to(daemon: Daemon) -> None:
    with tempfile.TemporaryDirectory() as outside:
        Path(outside, "kept").write_text("x")
        (daemon.workspace / "link").symlink_to(outside)
        assert (await daemon.call("DELETE", "/v1/files?path=link&recursive=1")).status_code == 204
        assert Path(outside, "kept").exists()


async def test_reading_what_is_no_file_is_told(daemon: Daemon) -> None:
    await daemon.run("mkdir d; mkfifo p; touch f")
    assert problem(await get(daemon, "d")) == (400, "IS_A_DIRECTORY")
    assert problem(await get(daemon, "p")) == (400, "NOT_A_FILE")
    assert problem(await get(daemon, "none")) == (404, "FILE_NOT_FOUND")
    assert problem(await get(daemon, "f/x")) == (400, "NOT_A_DIRECTORY")
    assert problem(await put(daemon, "d", b"x")) == (400, "IS_A_DIRECTORY")
    assert problem(await put(daemon, "p", b"x")) == (400, "NOT_A_FILE")


WAYS_OUT = [
    "../secret",
    "a/../../secret",
    "/etc/passwd",
    "out/passwd",
    "rel/secret",
    "up",
    "loop",
    "in/../../secret",
    "x" * 300,
]


async def test_a_session_cannot_leave_the_workspace(daemon: Daemon) -> None:
    secret = daemon.folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    (daemon.workspace / "in").mkdir()
    (daemon.workspace / "out").symlink_to("/etc")
    (daemon.workspace / "rel").symlink_to("in/../..")
    (daemon.workspace / "up").symlink_to("../secret")
    (daemon.workspace / "loop").symlink_to("loop")
    await daemon.bind("se-1")
    for path in WAYS_OUT:
        place = {"path": path}
        body = {"id": "c", "script": "cat *", "cwd": path}
        answers = [
            await get(daemon, path, "se-1"),
            await put(daemon, path, b"overwritten", "se-1"),
            await daemon.call("GET", "/v1/files/list", "se-1", params=place),
            await daemon.call("POST", "/v1/exec", "se-1", json=body),
        ]
        if path not in ("up", "loop"):
            answers.append(await daemon.call("DELETE", "/v1/files", "se-1", params=place))
        for answer in answers:
            refused = ("PATH_OUTSIDE", "CWD_OUTSIDE", "NAME_TOO_LONG", "TOO_MANY_LINKS", "FILE_NOT_FOUND")
            # The one path below a directory that is not there, a/../..: there is nothing to delete.
            assert answer.status_code == 204 or answer.json()["code"] in (*refused, "CWD_NOT_FOUND"), path
            assert b"root:" not in answer.content
    assert secret.read_text() == "secret"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
async def test_a_session_reaches_files_with_its_own_rights_only(daemon: Daemon) -> None:
    await daemon.bind("se-1")
    private = daemon.workspace / "of-root"
    private.write_text("secret")
    private.chmod(0o600)
    (daemon.workspace / "locked").mkdir(mode=0o755)
    os.link(daemon.folder / "config" / "sandboxd.json", daemon.workspace / "hard-link")
    (daemon.workspace / "hard-link").chmod(0o600)
    assert problem(await get(daemon, "of-root", "se-1")) == (403, "FILE_DENIED")
    assert problem(await get(daemon, "hard-link", "se-1")) == (403, "FILE_DENIED")
    assert problem(await put(daemon, "locked/x", b"x", "se-1")) == (403, "FILE_DENIED")
    info = decoded(await put(daemon, "mine", b"x", "se-1"), FileInfo)
    assert Path(info.path).stat().st_uid == 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to show that it is root")
async def test_the_control_plane_may_name_places_elsewhere(daemon: Daemon) -> None:
    elsewhere = daemon.folder / "elsewhere"
    info = decoded(await put(daemon, f"{elsewhere}/deep/f", b"x", mode="0600"), FileInfo)
    assert (info.path, Path(info.path).stat().st_uid) == (f"{elsewhere}/deep/f", 0)
    assert (await get(daemon, info.path)).content == b"x"
    inside = decoded(await put(daemon, f"{daemon.workspace}/f", b"x"), FileInfo)
    assert Path(inside.path).stat().st_uid == 1000, "inside the workspace everything is the user's"


async def test_a_swapped_directory_never_leads_out(daemon: Daemon) -> None:
    """A command exchanges a directory and a link to the outside, as fast as it can, while we write."""
    with tempfile.TemporaryDirectory() as outside:
        Path(outside).chmod(0o777)
        script = f"""
import os, time
os.mkdir("d"); os.symlink({outside!r}, "l")
end = time.monotonic() + 1.5
while time.monotonic() < end:
    os.rename("d", "t"); os.rename("l", "d"); os.rename("d", "l"); os.rename("t", "d")
"""
        status = await daemon.start(argv=["python3", "-c", script])
        while (await daemon.status(status.id)).state != "closed":
            await asyncio.gather(*(put(daemon, "d/f", b"x") for _ in range(4)))
        assert names_in(Path(outside)) == []


async def test_a_file_above_the_limit_is_refused_and_leaves_nothing() -> None:
    async with running(max_file_bytes=1_000_000) as daemon:
        assert problem(await put(daemon, "big", b"x" * 1_000_001)) == (413, "body_too_large")
        assert (await put(daemon, "fits", b"x" * 1_000_000)).status_code == 200
        assert names_in(daemon.workspace) == ["fits"]


async def test_an_upload_that_breaks_off_leaves_the_old_file(daemon: Daemon) -> None:
    await put(daemon, "f", b"old")
    _, writer = await asyncio.open_unix_connection(str(daemon.folder / "door.sock"))
    token = daemon.headers()["authorization"]
    head = f"PUT /v1/files?path=f HTTP/1.1\r\nhost: x\r\nauthorization: {token}\r\ncontent-length: 1000000\r\n\r\n"
    writer.write(head.encode() + b"x" * 200_000)
    await writer.drain()
    await eventually(lambda: len(names_in(daemon.workspace)) == 2)
    writer.close()
    await eventually(lambda: names_in(daemon.workspace) == ["f"])
    assert (await get(daemon, "f")).content == b"old"
