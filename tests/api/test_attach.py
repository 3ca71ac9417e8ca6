"""Attach through the real server: hits, misses, repeats, refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from controlplane.ids import new_session_id
from controlplane.sessions.request import AttachRequest
from controlplane.sessions.service import SessionLimits
from controlplane.store.port import ClaimRequest
from controlplane.store.redis_store import RedisStore
from tests.api.service import Api, Wiring, running
from tests.store.world import ACME, DEMO, POOL, V1, V2, World, until


async def test_a_warm_attach_answers_with_its_sandbox_reason_and_timings(api: Api, acme: httpx.AsyncClient) -> None:
    sandbox = await api.ready()
    answer = await acme.post("/v1/sessions", json={"pool": "demo", "labels": {"run": "1"}, "env": {"SECRET": "s"}})
    assert answer.status_code == 201, answer.text
    session = answer.json()
    assert (session["state"], session["start"], session["start_reason"]) == ("attached", "warm", "ready_in_pool")
    assert (session["sandbox"], session["pool"], session["template"]) == (sandbox, "demo", "demo")
    assert session["version"] == V1 and session["labels"] == {"run": "1"}
    assert set(session["timings_ms"]) == {"auth", "claim", "bind", "bound", "total"}
    assert answer.headers["location"] == f"/v1/sessions/{session['id']}"
    assert "SECRET" not in answer.text
    held = api.runtime.world.claim(sandbox)
    assert held is not None and held.env == {"SECRET": "s"} and held.claim_id == session["id"]


async def test_a_miss_waits_and_is_served_by_the_first_sandbox_that_becomes_ready(
    api: Api, acme: httpx.AsyncClient
) -> None:
    asked = asyncio.create_task(acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 60}))
    await until(lambda: _waiting(api, 1))
    sandbox = await api.world.sandbox()
    api.machine(sandbox.id)
    await api.serve_queue(sandbox.id)
    answer = await asked
    assert answer.status_code == 201
    session = answer.json()
    assert (session["start"], session["start_reason"], session["sandbox"]) == ("cold", "pool_empty", sandbox.id)


async def test_a_wait_that_is_over_answers_202_with_the_place_in_the_queue(api: Api, acme: httpx.AsyncClient) -> None:
    first = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})
    second = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0.05})
    assert (first.status_code, second.status_code) == (202, 202)
    building = await api.world.sandbox()
    waiting = (await acme.get(second.headers["location"])).json()
    assert waiting["state"] == "waiting"
    assert waiting["queue"] == {"position": 1, "pool_building": 1, "step": "starting"}
    await api.serve_queue(building.id)
    attached = (await acme.get(first.headers["location"], params={"wait_s": 20})).json()
    assert (attached["state"], attached["queue"]) == ("attached", None)
    assert (await acme.get(second.headers["location"])).json()["queue"]["position"] == 0


async def test_a_session_stays_queued_at_least_thirty_seconds(api: Api, acme: httpx.AsyncClient) -> None:
    session = (await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})).json()
    stored = await api.store.get_session(session["id"])
    assert stored.wait_until is not None
    assert stored.wait_until - stored.created_at == pytest.approx(30.0, abs=0.01)


async def test_a_dead_candidate_is_retired_and_the_next_one_tried(api: Api, acme: httpx.AsyncClient) -> None:
    alive = await api.ready()
    dead = await api.world.ready()  # Recorded as ready, but no machine answers; the newest, so taken first.
    session = (await acme.post("/v1/sessions", json={"pool": "demo"})).json()
    assert (session["state"], session["sandbox"]) == ("attached", alive)
    assert await api.world.state(dead) in ("failed", "draining")


async def test_when_every_candidate_is_dead_the_session_waits_for_a_cold_one(api: Api, acme: httpx.AsyncClient) -> None:
    await api.world.ready()
    await api.world.ready()
    answer = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})
    assert (answer.status_code, answer.json()["state"]) == (202, "waiting")


async def test_many_dead_candidates_in_a_row_end_the_session_with_a_typed_error(
    api: Api, acme: httpx.AsyncClient
) -> None:
    for _ in range(7):
        await api.world.ready()
    answer = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})
    assert (answer.status_code, answer.json()["code"]) == (503, "bind_failed")
    assert int(answer.headers["retry-after"]) >= 1
    live = (await acme.get("/v1/sessions", params={"state": "attached,binding,waiting"})).json()["sessions"]
    assert live == []


async def test_twenty_requests_on_three_sandboxes_give_three_warm_and_a_place_for_the_rest(
    api: Api, acme: httpx.AsyncClient
) -> None:
    sandboxes = {await api.ready() for _ in range(3)}
    answers = await asyncio.gather(*(acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0}) for _ in range(20)))
    warm = [a.json() for a in answers if a.status_code == 201]
    waiting = [a.json() for a in answers if a.status_code == 202]
    assert {s["sandbox"] for s in warm} == sandboxes and len(warm) == 3
    assert sorted(s["queue"]["position"] for s in waiting) != [] and len(waiting) == 17


async def test_the_same_idempotency_key_gives_the_same_session(api: Api, acme: httpx.AsyncClient) -> None:
    await api.ready()
    await api.ready()
    body = {"pool": "demo", "labels": {"a": "b"}}
    answers = await asyncio.gather(
        *(acme.post("/v1/sessions", json=body, headers={"Idempotency-Key": "k1"}) for _ in range(6))
    )
    assert {a.status_code for a in answers} == {201}
    assert len({a.json()["id"] for a in answers}) == 1
    in_body = await acme.post("/v1/sessions", json=body | {"idempotency_key": "k1", "wait_s": 3})
    assert in_body.json()["id"] == answers[0].json()["id"]


async def test_an_idempotency_key_of_another_request_is_a_conflict(api: Api, acme: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    assert (await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0}, headers=headers)).status_code == 202
    other = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0, "ttl_s": 5}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    two = await acme.post("/v1/sessions", json={"pool": "demo", "idempotency_key": "k2"}, headers=headers)
    assert (two.status_code, two.json()["code"]) == (400, "invalid_idempotency_key")


async def test_a_key_belongs_to_its_tenant(api: Api, acme: httpx.AsyncClient) -> None:
    await api.world.put_template(shared_with=("*",))
    other = await api.client("globex")
    headers = {"Idempotency-Key": "k1"}
    one = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0}, headers=headers)
    two = await other.post("/v1/sessions", json={"pool": "acme/demo", "wait_s": 0}, headers=headers)
    assert (one.status_code, two.status_code) == (202, 202)
    assert one.json()["id"] != two.json()["id"]


async def test_a_binding_that_a_crash_left_is_bound_by_the_repeat(api: Api, acme: httpx.AsyncClient) -> None:
    sandbox = await api.ready()
    request = AttachRequest(pool="demo", env={"A": "1"}, idempotency_key="crashed")
    claim = ClaimRequest(session=new_session_id(), tenant=ACME, api_key="k", pool=POOL, ttl_s=60.0, wait_s=60.0)
    claim = replace(claim, idempotency_key="crashed", request_digest=request.digest(), env={"A": "1"})
    left = await api.store.claim(claim)
    assert left.session is not None and left.session.state == "binding"
    answer = await acme.post("/v1/sessions", json={"pool": "demo", "env": {"A": "1"}, "idempotency_key": "crashed"})
    assert answer.status_code == 201, answer.text
    assert (answer.json()["id"], answer.json()["sandbox"]) == (left.session.id, sandbox)
    held = api.runtime.world.claim(sandbox)
    assert held is not None and held.env == {"A": "1"}


async def test_a_client_that_leaves_while_it_waits_cancels_nothing(api: Api, acme: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 60}, timeout=0.3)
    session = (await acme.get("/v1/sessions")).json()["sessions"][0]
    assert session["state"] == "waiting"
    sandbox = await api.world.sandbox()
    await api.serve_queue(sandbox.id)
    served = (await acme.get(f"/v1/sessions/{session['id']}")).json()
    assert (served["state"], served["sandbox"]) == ("attached", sandbox.id)


async def test_quota_is_never_exceeded_however_many_ask_at_once(
    api: Api, acme: httpx.AsyncClient, ops: httpx.AsyncClient
) -> None:
    assert (await ops.put("/v1/tenants/acme", json={"max_sessions": 3})).json()["max_sessions"] == 3
    for _ in range(8):
        await api.ready()
    answers = await asyncio.gather(*(acme.post("/v1/sessions", json={"pool": "demo"}) for _ in range(12)))
    assert sorted(a.status_code for a in answers) == [201] * 3 + [429] * 9
    refused = next(a for a in answers if a.status_code == 429)
    assert refused.json()["code"] == "over_quota" and int(refused.headers["retry-after"]) >= 1
    ended = next(a for a in answers if a.status_code == 201).json()["id"]
    await acme.delete(f"/v1/sessions/{ended}")
    assert (await acme.post("/v1/sessions", json={"pool": "demo"})).status_code == 201


async def test_a_full_queue_refuses_promptly_and_keeps_the_key_free(
    valkey_url: str, store: RedisStore, world: World, deployment: str, tmp_path: Path
) -> None:
    wiring = Wiring(session_limits=SessionLimits(max_waiting_per_pool=2))
    async with running(valkey_url, store, world, deployment, tmp_path, wiring) as api:
        acme = await api.client()
        for _ in range(2):
            assert (await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})).status_code == 202
        body = {"pool": "demo", "wait_s": 60, "idempotency_key": "k"}
        full = await acme.post("/v1/sessions", json=body)
        assert (full.status_code, full.json()["code"]) == (503, "no_capacity")
        assert full.json()["retry_after_s"] > 0 and int(full.headers["retry-after"]) >= 1
        for session in (await acme.get("/v1/sessions")).json()["sessions"]:
            await acme.delete(f"/v1/sessions/{session['id']}")
        await api.ready()
        assert (await acme.post("/v1/sessions", json=body)).status_code == 201


async def test_a_pool_deleted_while_a_session_waits_answers_it(api: Api, acme: httpx.AsyncClient) -> None:
    asked = asyncio.create_task(acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 60}))
    await until(lambda: _waiting(api, 1))
    assert (await acme.delete("/v1/pools/demo")).status_code == 204
    answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (404, "pool_not_found")
    again = await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})
    assert (again.status_code, again.json()["code"]) == (404, "pool_not_found")


async def test_a_template_that_failed_is_told_to_those_who_wait(api: Api, acme: httpx.AsyncClient) -> None:
    asked = asyncio.create_task(acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 60}))
    await until(lambda: _waiting(api, 1))
    await api.store.end_waiting(POOL, "template_failed", "setup command 1 failed", "scheduler")
    answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (400, "template_failed")
    assert "setup command 1 failed" in answer.json()["detail"]


async def test_a_template_with_sizes_of_its_own_makes_a_one_off_pool_and_says_why(
    api: Api, acme: httpx.AsyncClient
) -> None:
    body = {"template": "demo", "resources": {"memory_bytes": "512Mi"}, "wait_s": 0}
    session = (await acme.post("/v1/sessions", json=body)).json()
    assert (session["start"], session["start_reason"]) == ("cold", "resources_differ")
    again = (await acme.post("/v1/sessions", json=body)).json()
    assert session["pool"] == again["pool"] and session["pool"].startswith("adhoc-")
    pool = (await acme.get(f"/v1/pools/{session['pool']}")).json()
    assert (pool["adhoc"], pool["min_ready"], pool["resources"]["memory_bytes"]) == (True, 0, 512 * 1024**2)


async def test_a_template_attach_uses_a_pool_of_the_same_ref_and_sizes(api: Api, acme: httpx.AsyncClient) -> None:
    sandbox = await api.ready()
    session = (await acme.post("/v1/sessions", json={"template": "demo"})).json()
    assert (session["pool"], session["sandbox"], session["start"]) == ("demo", sandbox, "warm")


async def test_a_ref_needs_a_repository_and_makes_a_pool_of_its_own(api: Api, acme: httpx.AsyncClient) -> None:
    plain = await acme.post("/v1/sessions", json={"template": "demo", "ref": "main", "wait_s": 0})
    assert (plain.status_code, plain.json()["code"]) == (400, "invalid_ref")
    await acme.put("/v1/templates/demo", json={"repository": {"url": "https://git.example/x.git", "ref": "main"}})
    own = (await acme.post("/v1/sessions", json={"template": "demo", "ref": "main", "wait_s": 0})).json()
    assert own["pool"] == "demo"
    session = (await acme.post("/v1/sessions", json={"template": "demo", "ref": "v1.2", "wait_s": 0})).json()
    assert session["start_reason"] == "no_pool"
    assert (await api.store.get_pool(f"acme/{session['pool']}")).ref == "v1.2"  # type: ignore[arg-type]


async def test_in_strict_mode_an_old_version_is_not_handed_out(api: Api, acme: httpx.AsyncClient) -> None:
    await api.ready()
    await acme.put("/v1/templates/demo", json={"setup": ["true"], "strict": True})
    build = await api.world.start_build()
    await api.store.finish_build(build, api.world.version(build, V2), 0.0)
    session = (await acme.post("/v1/sessions", json={"pool": "demo", "wait_s": 0})).json()
    assert (session["state"], session["start_reason"]) == ("waiting", "version_changed")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"pool": "nope"}, 404, "pool_not_found"),
        ({"pool": "globex/demo"}, 404, "pool_not_found"),
        ({"template": "nope"}, 404, "template_not_found"),
        ({"pool": "Ünïcode"}, 400, "invalid_name"),
        ({"pool": "../../etc"}, 400, "invalid_name"),
        ({"pool": "a" * 64}, 400, "invalid_name"),
        ({"pool": ""}, 400, "invalid_name"),
        ({"pool": "demo\n"}, 400, "invalid_name"),
        ({"template": "-x"}, 400, "invalid_name"),
        ({}, 400, "invalid_target"),
        ({"pool": "demo", "template": "demo"}, 400, "invalid_target"),
        ({"pool": "demo", "ref": "main"}, 400, "invalid_target"),
        ({"pool": "demo", "ttl_s": 0}, 400, "invalid_ttl"),
        ({"pool": "demo", "ttl_s": -1}, 400, "invalid_ttl"),
        ({"pool": "demo", "ttl_s": 1e9}, 400, "invalid_ttl"),
        ({"pool": "demo", "idle_timeout_s": 0}, 400, "invalid_idle_timeout"),
        ({"pool": "demo", "wait_s": -1}, 400, "invalid_wait"),
        ({"pool": "demo", "wait_s": 1e6}, 400, "invalid_wait"),
        ({"pool": "demo", "env": {"A B": "x"}}, 400, "invalid_env"),
        ({"pool": "demo", "env": {"A": "\0"}}, 400, "invalid_env"),
        ({"pool": "demo", "env": {"A": "x" * 40_000}}, 400, "invalid_env"),
        ({"pool": "demo", "env": {f"A{i}": "" for i in range(300)}}, 400, "invalid_env"),
        ({"pool": "demo", "labels": {"": "x"}}, 400, "invalid_labels"),
        ({"pool": "demo", "labels": {f"l{i}": "" for i in range(65)}}, 400, "invalid_labels"),
        ({"pool": "demo", "labels": {"a": "x" * 2000}}, 400, "invalid_labels"),
        ({"template": "demo", "resources": {"memory_bytes": 1}}, 400, "invalid_resources"),
        ({"template": "demo", "resources": {"pids": 1}}, 400, "invalid_resources"),
        ({"template": "demo", "ref": "--upload-pack=x"}, 400, "invalid_ref"),
        ({"pool": "demo", "idempotency_key": "a b"}, 400, "invalid_idempotency_key"),
        ({"pool": "demo", "tttl_s": 5}, 422, "invalid_request"),
        ({"pool": ["demo"]}, 422, "invalid_request"),
        ({"template": "demo", "resources": {"memory_bytes": "12 parsecs"}}, 422, "invalid_request"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused_with_a_code_and_leaves_nothing(
    api: Api, acme: httpx.AsyncClient, body: dict[str, object], status: int, code: str
) -> None:
    answer = await acme.post("/v1/sessions", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert (await acme.get("/v1/sessions")).json()["sessions"] == []
    assert [pool.key for pool in await api.store.list_pools()] == [DEMO]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"pool": "\\ud800"}', b'{"pool":"demo","ttl_s":NaN}']
)
async def test_a_body_that_is_not_the_expected_json_is_a_problem(api: Api, acme: httpx.AsyncClient, raw: bytes) -> None:
    answer = await acme.post("/v1/sessions", content=raw)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"]


async def _waiting(api: Api, count: int) -> bool:
    sessions = await api.store.list_sessions(None, ("waiting",), {}, 100)
    return len(sessions) == count
