"""Commands and files of a session through the control plane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.api.service import Api
from tests.api.test_sessions import attached
from tests.store.world import until


async def test_a_command_runs_and_its_events_can_be_paged_and_streamed(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme, env={"NAME": "world"})
    base = f"/v1/sessions/{session['id']}/exec"
    started = await acme.post(base, json={"id": "e1", "script": "echo hello"})
    assert started.status_code == 201, started.text
    assert started.json()["id"] == "e1"
    stream = await acme.get(f"{base}/e1/stream")
    assert stream.headers["content-type"].startswith("application/x-ndjson")
    events = [json.loads(line) for line in stream.text.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["kind"] == "closed" and events[-1]["status"]["code"] == 0
    assert "".join(e["text"] for e in events if e["kind"] == "stdout") == "hello\n"
    page = (await acme.get(f"{base}/e1/events", params={"after": 1, "limit": 1})).json()
    assert [event["seq"] for event in page["events"]] == [2] and page["next_after"] == 2
    rest = (await acme.get(f"{base}/e1/stream", params={"after": 2})).text.splitlines()
    assert json.loads(rest[0])["seq"] == 3
    again = await acme.post(base, json={"id": "e1", "script": "echo hello"})
    assert again.json()["started_at"] == started.json()["started_at"]
    assert [c["id"] for c in (await acme.get(base)).json()["commands"]] == ["e1"]
    assert (await acme.get(f"{base}/e1")).json()["code"] == 0


async def test_a_command_without_an_id_is_given_one(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    ids = {(await acme.post(f"/v1/sessions/{session['id']}/exec", json={"argv": ["true"]})).json()["id"] for _ in "ab"}
    assert len(ids) == 2


async def test_a_quiet_command_can_be_followed_signalled_and_is_told_to_its_reader(
    api: Api, acme: httpx.AsyncClient
) -> None:
    session = await attached(api, acme)
    base = f"/v1/sessions/{session['id']}/exec"
    await acme.post(base, json={"id": "e1", "script": "sleep 1000"})
    async with acme.stream("GET", f"{base}/e1/stream") as stream:
        assert stream.status_code == 200
        cancelled = await acme.post(f"{base}/e1/signal", json={"signal": "TERM", "cancel": True})
        assert cancelled.status_code == 200, cancelled.text
        lines = [json.loads(line) async for line in stream.aiter_lines() if line]
    assert lines[-1]["kind"] == "closed"
    assert (await acme.get(f"{base}/e1")).json()["reason"] in ("cancelled", "signal")


async def test_a_reader_that_leaves_a_stream_leaves_nothing_behind(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    base = f"/v1/sessions/{session['id']}/exec"
    await acme.post(base, json={"id": "e1", "script": "sleep 1000"})
    async with acme.stream("GET", f"{base}/e1/stream") as stream:
        assert stream.status_code == 200
    assert (await acme.get(f"{base}/e1")).json()["state"] == "running"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "exec", {"script": "a", "argv": ["b"]}, 400, "INVALID_COMMAND"),
        ("POST", "exec", {}, 400, "INVALID_COMMAND"),
        ("POST", "exec", {"script": "a", "timeout_s": -1}, 400, "INVALID_TIMEOUT"),
        ("POST", "exec", {"script": "a", "surprise": 1}, 422, "invalid_request"),
        ("POST", "exec", {"script": "a", "user": "toor"}, 422, "invalid_request"),
        ("GET", "exec/none", None, 404, "exec_not_found"),
        ("GET", "exec/none/events", None, 404, "exec_not_found"),
        ("GET", "exec/none/stream", None, 404, "exec_not_found"),
        ("POST", "exec/none/signal", {"signal": "TERM"}, 404, "exec_not_found"),
        ("GET", "exec/none/events?wait_s=1e9", None, 400, "invalid_wait"),
        ("GET", "exec/none/events?after=-1", None, 422, "invalid_request"),
        ("GET", "files?path=/nothing", None, 404, "FILE_NOT_FOUND"),
        ("GET", "files", None, 422, "invalid_request"),
        ("PUT", "files?path=/a&mode=9999", None, 422, "invalid_request"),
    ],
)
async def test_what_sandboxd_or_the_schema_refuses_is_a_problem(
    api: Api, acme: httpx.AsyncClient, method: str, path: str, body: object, status: int, code: str
) -> None:
    session = await attached(api, acme)
    answer = await acme.request(method, f"/v1/sessions/{session['id']}/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


async def test_files_are_written_read_listed_and_deleted(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    files = f"/v1/sessions/{session['id']}/files"
    data = bytes(range(256)) * 4096

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    path = "/workspace/ä b.bin"
    written = await acme.put(files, params={"path": path, "mode": "0600"}, content=pieces())
    assert written.status_code == 200, written.text
    assert (written.json()["size"], written.json()["mode"]) == (len(data), "0600")
    read = await acme.get(files, params={"path": path})
    assert read.content == data and read.headers["content-type"] == "application/octet-stream"
    listed = (await acme.get(f"{files}/list", params={"path": "/workspace"})).json()
    assert [entry["path"] for entry in listed["entries"]] == [path]
    await acme.put(files, params={"path": "/workspace/empty"}, content=b"")
    assert (await acme.get(files, params={"path": "/workspace/empty"})).content == b""
    for _ in range(2):
        assert (await acme.delete(files, params={"path": path})).status_code == 204
    assert (await acme.get(files, params={"path": path})).status_code == 404


async def test_a_session_that_waits_or_ended_has_no_machine(api: Api, acme: httpx.AsyncClient) -> None:
    waiting = (await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})).json()
    body = {"script": "true"}
    none = await acme.post(f"/v1/sessions/{waiting['id']}/exec", json=body)
    assert (none.status_code, none.json()["code"]) == (409, "session_not_attached")
    await acme.delete(f"/v1/sessions/{waiting['id']}")
    over = await acme.post(f"/v1/sessions/{waiting['id']}/exec", json=body)
    assert (over.status_code, over.json()["code"]) == (409, "session_ended")
    assert "deleted" in over.json()["detail"]


async def test_a_sandbox_that_does_not_answer_is_unavailable_until_its_end_is_known(
    api: Api, acme: httpx.AsyncClient
) -> None:
    session = await attached(api, acme)
    path = f"/v1/sessions/{session['id']}/exec"
    api.runtime.world.remove_sandbox(str(session["sandbox"]))
    gone = await acme.post(path, json={"script": "true"})
    assert (gone.status_code, gone.json()["code"]) == (503, "sandbox_unreachable")
    assert int(gone.headers["retry-after"]) >= 1
    await api.store.fail_sandbox(session["sandbox"], "the machine vanished", "reaper")  # type: ignore[arg-type]
    lost = await acme.post(path, json={"script": "true"})
    assert (lost.status_code, lost.json()["code"]) == (409, "session_ended")
    assert "sandbox_lost" in lost.json()["detail"]


async def test_a_stream_whose_sandbox_is_lost_is_cut_and_not_ended(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    base = f"/v1/sessions/{session['id']}/exec"
    await acme.post(base, json={"id": "e1", "script": "echo begin; sleep 1000"})
    with pytest.raises(httpx.RemoteProtocolError):
        async with acme.stream("GET", f"{base}/e1/stream") as stream:
            async for line in stream.aiter_lines():
                if '"stdout"' in line:
                    api.runtime.world.remove_sandbox(str(session["sandbox"]))


async def test_using_the_machine_counts_as_activity(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    before = (await api.store.get_session(session["id"])).last_activity_at  # type: ignore[arg-type]
    assert before is not None
    await asyncio.sleep(0)

    async def later() -> bool:
        await acme.get(f"/v1/sessions/{session['id']}/exec")
        return ((await api.store.get_session(session["id"])).last_activity_at or 0) > before  # type: ignore[arg-type]

    assert await until(later)
