"""Events as pages and as a stream that resumes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from controlplane.api.deps import ApiLimits
from controlplane.store.redis_store import RedisStore
from tests.api.service import Api, Wiring, running
from tests.api.test_sessions import attached
from tests.store.world import World


async def sse(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """Events and comments (field ``""``) of a stream."""
    block: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            field, _, value = line.partition(":")
            block[field] = value.strip()
        elif block:
            yield block
            block = {}


async def test_pages_go_on_from_where_the_last_one_ended(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme)
    seen, after = [], "0"
    while True:
        page = (await acme.get("/v1/events", params={"after": after, "limit": 2})).json()
        if not page["events"]:
            break
        seen += page["events"]
        after = page["next"]
    kinds = [event["kind"] for event in seen]
    assert len({event["id"] for event in seen}) == len(seen)
    assert any(kind.startswith("session.") for kind in kinds) and any(kind.startswith("sandbox.") for kind in kinds)
    only = (await acme.get("/v1/events", params={"kind": "session."})).json()["events"]
    assert only and all(event["kind"].startswith("session.") for event in only)
    assert {event["subject"] for event in only} == {session["id"]}
    wrong = await acme.get("/v1/events", params={"after": "yesterday"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_position")


async def test_a_stream_gives_events_as_they_happen_and_resumes(api: Api, acme: httpx.AsyncClient) -> None:
    params = {"follow": 1, "kind": "session."}
    async with acme.stream("GET", "/v1/events", params=params) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = sse(stream)
        assert "" in await anext(events)
        session = await attached(api, acme)
        first = await anext(events)
    assert (json.loads(first["data"])["subject"], first["event"][:8]) == (session["id"], "session.")
    await acme.delete(f"/v1/sessions/{session['id']}")
    async with acme.stream("GET", "/v1/events", params=params, headers={"Last-Event-ID": first["id"]}) as stream:
        events = sse(stream)
        await anext(events)
        rest = [await anext(events)]
        while json.loads(rest[-1]["data"])["data"].get("state") != "ended" and "end" not in rest[-1]["event"]:
            rest.append(await anext(events))
    ids = [first["id"], *(event["id"] for event in rest)]
    assert sorted(set(ids), key=lambda i: tuple(map(int, i.split("-")))) == ids


async def test_a_silent_stream_sends_comments(
    valkey_url: str, store: RedisStore, world: World, deployment: str, tmp_path: Path
) -> None:
    wiring = Wiring(limits=ApiLimits(event_heartbeat_s=0.05))
    async with running(valkey_url, store, world, deployment, tmp_path, wiring) as api:
        client = await api.client()
        async with client.stream("GET", "/v1/events", params={"follow": 1}) as stream:
            events = sse(stream)
            assert [(await anext(events))[""] for _ in range(3)] == ["events", "heartbeat", "heartbeat"]


async def test_a_stream_shows_a_tenant_its_own_events_only(api: Api, acme: httpx.AsyncClient) -> None:
    other = await api.client("globex")
    await other.put("/v1/templates/theirs", json={})
    await acme.put("/v1/templates/ours", json={})
    async with acme.stream("GET", "/v1/events", params={"follow": 1, "after": "0", "kind": "template."}) as stream:
        subjects = []
        async for event in sse(stream):
            if "data" in event:
                subjects.append(json.loads(event["data"])["subject"])
            if "acme/ours" in subjects:
                break
    assert "globex/theirs" not in subjects


@pytest.mark.parametrize("position", ["-", "0-", "1-x", "9" * 30, "$$"])
async def test_a_position_that_is_none_is_refused_before_the_stream_begins(
    acme: httpx.AsyncClient, position: str
) -> None:
    answer = await acme.get("/v1/events", params={"follow": 1}, headers={"Last-Event-ID": position})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_position")
