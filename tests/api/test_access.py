"""Keys, roles, tenants: who may see and do what."""

from __future__ import annotations

import httpx
import pytest

from tests.api.service import Api
from tests.api.test_sessions import attached

ANYONE = {"/v1/whoami"}


async def routes(client: httpx.AsyncClient) -> list[tuple[str, str]]:
    """Every method and path of the OpenAPI document, with names filled in."""
    document = (await client.get("/openapi.json")).json()
    found = []
    for path, methods in document["paths"].items():
        for name in ("session_id", "exec_id", "name", "build_id", "sandbox_id", "key_id", "tenant_id"):
            path = path.replace("{" + name + "}", "x1")
        assert "{" not in path
        found += [(method.upper(), path) for method in methods]
    return found


async def test_every_v1_route_refuses_a_call_without_a_key(api: Api) -> None:
    bare = api.bare()
    checked = [(m, p) for m, p in await routes(bare) if p.startswith("/v1/")]
    assert len(checked) > 30
    for method, path in checked:
        answer = await bare.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key"), (method, path, answer.text)
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Basic dXNlcjpwYXNz",
        "Bearer wp_short_key",
        "Bearer wp_0000000000000000_" + "A" * 43,
        "Bearer " + "x" * 5000,
        "Bearer wp_é_ü",
    ],
)
async def test_a_header_that_is_no_key_is_refused_alike(api: Api, header: str) -> None:
    bare = api.bare()
    answer = await bare.get("/v1/whoami", headers={"Authorization": header.encode()})  # type: ignore[dict-item]
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")


async def test_a_key_with_a_changed_secret_is_refused(api: Api, acme: httpx.AsyncClient) -> None:
    text = acme.headers["authorization"]
    changed = text[:-1] + ("A" if text[-1] != "A" else "B")
    assert (await api.bare({"Authorization": changed}).get("/v1/whoami")).status_code == 401
    assert (await acme.get("/v1/whoami")).json() == {"tenant": "acme", "role": "platform", "key": text[10:26]}


async def test_a_revoked_key_stops_at_once_and_its_sessions_live_on(
    api: Api, acme: httpx.AsyncClient, ops: httpx.AsyncClient
) -> None:
    made = await ops.post("/v1/keys", json={"tenant": "acme", "note": "ci"})
    assert made.status_code == 201 and made.json()["role"] == "platform"
    key = api.bare({"Authorization": f"Bearer {made.json()['key']}"})
    session = await attached(api, key)
    revoked = await ops.delete(f"/v1/keys/{made.json()['id']}")
    assert revoked.json()["revoked_at"] is not None
    assert (await key.get("/v1/whoami")).status_code == 401
    # The key was proven a moment ago and is not read again for an attach: the claim itself refuses it.
    ready = await api.ready()
    refused = await key.post("/v1/sessions", json={"pool": "demo"})
    assert (refused.status_code, refused.json()["code"]) == (401, "invalid_key")
    assert (await api.store.get_sandbox(ready)).state == "ready"
    assert (await ops.delete(f"/v1/keys/{made.json()['id']}")).json() == revoked.json()
    assert (await acme.get(f"/v1/sessions/{session['id']}")).json()["state"] == "attached"
    listed = (await ops.get("/v1/keys", params={"tenant": "acme"})).json()["keys"]
    assert {key["id"]: key["note"] for key in listed}[made.json()["id"]] == "ci"
    assert "key" not in listed[0] and "mac" not in listed[0]
    unknown = await ops.delete("/v1/keys/0000000000000000")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "key_not_found")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/keys", {"role": "ops"}),
        ("GET", "/v1/keys", None),
        ("DELETE", "/v1/keys/x", None),
        ("PUT", "/v1/tenants/acme", {"max_sessions": 10}),
        ("PUT", "/v1/pools/demo/pin", {"ready": 3}),
    ],
)
async def test_what_is_for_operators_is_denied_to_platforms(
    acme: httpx.AsyncClient, method: str, path: str, body: object
) -> None:
    answer = await acme.request(method, path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "role_not_allowed")


async def test_a_browser_key_may_ask_who_it_is_and_nothing_else(api: Api) -> None:
    browser = await api.client("acme", "browser-intent")
    for method, path in await routes(browser):
        if path.startswith("/v1/"):
            answer = await browser.request(method, path)
            assert answer.status_code == (200 if path in ANYONE else 403), (method, path, answer.text)


async def test_two_tenants_cannot_see_or_touch_each_others_things(api: Api, acme: httpx.AsyncClient) -> None:
    session = await attached(api, acme, labels={"secret": "1"})
    await acme.post(f"/v1/sessions/{session['id']}/exec", json={"id": "e1", "script": "sleep 100"})
    build = await api.world.start_build()
    other = await api.client("globex")
    sid, sandbox = session["id"], session["sandbox"]
    for method, path, body in (
        ("GET", f"/v1/sessions/{sid}", None),
        ("POST", f"/v1/sessions/{sid}/keepalive", None),
        ("GET", f"/v1/sessions/{sid}/exec", None),
        ("POST", f"/v1/sessions/{sid}/exec", {"script": "true"}),
        ("GET", f"/v1/sessions/{sid}/exec/e1/stream", None),
        ("POST", f"/v1/sessions/{sid}/exec/e1/signal", {"signal": "KILL"}),
        ("GET", f"/v1/sessions/{sid}/files?path=/etc/passwd", None),
        ("PUT", f"/v1/sessions/{sid}/files?path=/x", None),
        ("GET", "/v1/templates/demo", None),
        ("GET", "/v1/pools/demo", None),
        ("GET", "/v1/pools/demo/explain", None),
        ("POST", "/v1/templates/demo/build", None),
        ("GET", f"/v1/sandboxes/{sandbox}", None),
        ("GET", f"/v1/builds/{build.id}", None),
        ("GET", f"/v1/builds/{build.id}/logs", None),
        ("GET", "/v1/builds?template=acme/demo", None),
        ("PUT", "/v1/pools/mine", {"template": "acme/demo"}),
        ("POST", "/v1/sessions", {"pool": "acme/demo", "wait_s": 0}),
        ("POST", "/v1/sessions", {"template": "acme/demo", "wait_s": 0}),
    ):
        answer = await other.request(method, path, json=body)
        assert answer.status_code == 404, (method, path, answer.text)
    assert (await other.delete(f"/v1/sessions/{sid}")).status_code == 204
    assert (await acme.get(f"/v1/sessions/{sid}")).json()["state"] == "attached"
    for path in ("sessions", "templates", "pools", "sandboxes", "builds", "events"):
        theirs, own = (await other.get(f"/v1/{path}")).json()[path], (await acme.get(f"/v1/{path}")).json()[path]
        assert own and {item["tenant"] for item in own} == {"acme"}, path
        assert {item["tenant"] for item in theirs} <= {"globex"}, path
    denied = await other.get("/v1/sessions", params={"tenant": "acme"})
    assert (denied.status_code, denied.json()["code"]) == (403, "other_tenant")


async def test_a_shared_template_and_its_pool_are_named_with_their_owner(api: Api, acme: httpx.AsyncClient) -> None:
    await acme.put("/v1/templates/demo", json={"shared_with": ["globex"]})
    other, third = await api.client("globex"), await api.client("initech")
    await api.ready()
    session = (await other.post("/v1/sessions", json={"pool": "acme/demo"})).json()
    assert (session["tenant"], session["pool"], session["template"]) == ("globex", "acme/demo", "acme/demo")
    assert [t["name"] for t in (await other.get("/v1/templates")).json()["templates"]] == ["acme/demo"]
    assert (await acme.get(f"/v1/sessions/{session['id']}")).status_code == 404
    assert (await third.post("/v1/sessions", json={"pool": "acme/demo"})).status_code == 404
    own = await other.put("/v1/pools/mine", json={"template": "acme/demo", "min_ready": 0})
    assert (own.status_code, own.json()["template"]) == (200, "acme/demo")
    await acme.put("/v1/templates/demo", json={"shared_with": []})
    assert (await other.post("/v1/sessions", json={"pool": "acme/demo"})).status_code == 404


async def test_operators_see_all_tenants_and_act_for_the_one_they_name(
    api: Api, acme: httpx.AsyncClient, ops: httpx.AsyncClient
) -> None:
    session = await attached(api, acme)
    assert [s["id"] for s in (await ops.get("/v1/sessions")).json()["sessions"]] == [session["id"]]
    assert [p["name"] for p in (await ops.get("/v1/pools")).json()["pools"]] == ["acme/demo"]
    assert (await ops.get("/v1/sessions", params={"tenant": "globex"})).json()["sessions"] == []
    assert (await ops.get(f"/v1/sessions/{session['id']}")).status_code == 404
    named = await ops.get(f"/v1/sessions/{session['id']}", params={"tenant": "acme"})
    assert named.json()["id"] == session["id"]
    assert (await ops.get("/v1/pools", params={"tenant": "../x"})).json()["code"] == "invalid_name"
    pinned = await ops.put("/v1/pools/demo/pin", params={"tenant": "acme"}, json={"ready": 3})
    assert pinned.json()["pinned_ready"] == 3
    assert (await acme.get("/v1/pools/demo")).json()["pinned_ready"] == 3
    too_many = await ops.put("/v1/pools/demo/pin", params={"tenant": "acme"}, json={"ready": 10**6})
    assert (too_many.status_code, too_many.json()["code"]) == (400, "invalid_pin")


async def test_limits_of_a_tenant_hold_from_the_next_request_on(
    api: Api, acme: httpx.AsyncClient, ops: httpx.AsyncClient
) -> None:
    await attached(api, acme, ttl_s=500)
    assert (await ops.put("/v1/tenants/acme", json={"max_ttl_s": 100})).json()["max_ttl_s"] == 100
    refused = await acme.post("/v1/sessions", json={"pool": "demo", "ttl_s": 500})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_ttl")
    session = await attached(api, acme)
    assert session["ttl_s"] == 100
    assert (await ops.put("/v1/tenants/acme", json={"max_ttl_s": 0})).status_code == 422
    assert (await ops.put("/v1/tenants/UPPER", json={})).json()["code"] == "invalid_name"
