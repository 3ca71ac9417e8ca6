"""Reading, extending and ending sessions."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.api.service import Api
from tests.store.world import until


async def attached(api: Api, client: httpx.AsyncClient, **body: object) -> dict[str, object]:
    await api.ready()
    answer = await client.post("/v1/sessions", json={"pool": "demo"} | body)
    assert answer.status_code == 201, answer.text
    session: dict[str, object] = answer.json()
    return session


async def test_a_session_can_be_read_and_listed_by_state_and_label(api: Api, acme: httpx.AsyncClient) -> None:
    one = await attached(api, acme, labels={"run": "1", "team": "x"})
    two = await attached(api, acme, labels={"run": "2", "team": "x"})
    await acme.delete(f"/v1/sessions/{two['id']}")
    assert (await acme.get(f"/v1/sessions/{one['id']}")).json() == one | {"timings_ms": None}

    async def ids(**params: object) -> list[object]:
        answer = await acme.get("/v1/sessions", params=params)  # type: ignore[arg-type]
        return [session["id"] for session in answer.json()["sessions"]]

    assert await ids() == [one["id"], two["id"]]
    assert await ids(state="attached") == [one["id"]]
    assert await ids(state=["ended", "waiting"]) == [two["id"]]
    assert await ids(label="team=x", state="ended") == [two["id"]]
    assert await ids(label=["run=1", "team=x"]) == [one["id"]]
    assert await ids(limit=1) == [one["id"]]
    wrong = await acme.get("/v1/sessions", params={"state": "happy"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_state")
    assert (await acme.get("/v1/sessions", params={"label": "run"})).json()["code"] == "invalid_labels"
    assert (await acme.get("/v1/sessions", params={"limit": 0})).status_code == 422


async def test_keepalive_moves_the_end_of_the_lease(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme, ttl_s=100)
    path = f"/v1/sessions/{session['id']}/keepalive"
    longer = (await acme.post(path, json={"ttl_s": 500})).json()
    assert longer["expires_at"] > session["expires_at"] + 300
    own = (await acme.post(path)).json()
    assert own["expires_at"] < longer["expires_at"]
    for ttl_s, code in ((0, "invalid_ttl"), (-5, "invalid_ttl"), (1e9, "invalid_ttl")):
        refused = await acme.post(path, json={"ttl_s": ttl_s})
        assert (refused.status_code, refused.json()["code"]) == (400, code)
    await acme.delete(f"/v1/sessions/{session['id']}")
    over = await acme.post(path)
    assert (over.status_code, over.json()["code"]) == (409, "session_ended")


async def test_delete_is_legal_in_every_state_and_twice(api: Api, acme: httpx.AsyncClient) -> None:
    waiting = (await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})).json()
    ended = (await acme.delete(f"/v1/sessions/{waiting['id']}")).json()
    assert (ended["state"], ended["end_reason"]) == ("ended", "deleted")
    session = await attached(api, acme)
    first = await acme.delete(f"/v1/sessions/{session['id']}")
    again = await acme.delete(f"/v1/sessions/{session['id']}")
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json() and first.json()["end_reason"] == "deleted"
    unknown = await acme.delete("/v1/sessions/se-unknown")
    assert (unknown.status_code, unknown.content) == (204, b"")
    assert await api.world.state(session["sandbox"]) == "draining"  # type: ignore[arg-type]


async def test_a_delete_is_finished_even_when_its_client_leaves(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    host, port = api.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"DELETE /v1/sessions/{session['id']} HTTP/1.1\r\nHost: x\r\nAuthorization: {acme.headers['authorization']}\r\n"
    )
    writer.write(head.encode() + b"\r\n")
    await writer.drain()
    writer.transport.abort()

    async def ended() -> bool:
        return (await api.store.get_session(session["id"])).state == "ended"  # type: ignore[arg-type]

    assert await until(ended)


async def test_a_long_poll_answers_when_the_session_gets_its_sandbox(api: Api, acme: httpx.AsyncClient) -> None:
    session = (await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})).json()
    polling = asyncio.create_task(acme.get(f"/v1/sessions/{session['id']}", params={"wait_s": 60}))
    await api.ready()
    sandbox = next(iter(await api.store.list_sandboxes(None)))
    await api.store.bound(session["id"], sandbox.id)
    assert (await polling).json()["state"] == "attached"
    short = await acme.get(f"/v1/sessions/{session['id']}", params={"wait_s": 10**9})
    assert short.json()["state"] == "attached"


async def test_a_session_that_lost_its_sandbox_says_so(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    await api.store.fail_sandbox(session["sandbox"], "the machine vanished", "reaper")  # type: ignore[arg-type]
    told = (await acme.get(f"/v1/sessions/{session['id']}")).json()
    assert (told["state"], told["end_reason"]) == ("ended", "sandbox_lost")


@pytest.mark.parametrize("name", ["se-nope", "%00", "a%2Fb", "x" * 500, "ÿ", "..%2f..%2fetc"])
@pytest.mark.parametrize("action", ["", "/keepalive", "/exec", "/files/list"])
async def test_an_unknown_session_is_not_found_whatever_it_is_called(
    acme: httpx.AsyncClient, name: str, action: str
) -> None:
    answer = await acme.request("POST" if action == "/keepalive" else "GET", f"/v1/sessions/{name}{action}")
    assert answer.status_code == 404, answer.text
    assert answer.json()["code"] in ("session_not_found", "route_not_found")
    assert len(answer.text) < 1000
