"""Templates, pools, builds, sandboxes, the runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from controlplane.artifacts import FolderBuildLogs
from controlplane.model.actions import PoolDecision
from controlplane.model.template import BuildStep
from controlplane.planning.explain import encode_decision
from tests.api.service import Api
from tests.store.world import DEMO, POOL, V1

DECLARED = {
    "repository": {"url": "https://git.example/app.git", "ref": "main"},
    "setup": ["make deps", {"run": "make", "timeout_s": 30}],
    "env": {"A": "1"},
    "resources": {"memory_bytes": "512Mi", "disk_bytes": "2Gi"},
    "build_allow": ["git.example"],
    "max_age_s": 7200,
}


async def test_a_template_is_created_replaced_and_read(acme: httpx.AsyncClient) -> None:
    made = await acme.put("/v1/templates/app", json={**DECLARED, "resources": {"memory_bytes": "512Mi"}})
    assert made.status_code == 201, made.text
    template = made.json()
    assert (template["name"], template["tenant"], template["key"]) == ("app", "acme", "acme/app")
    assert template["resources"]["memory_bytes"] == 512 * 1024**2 and template["revision"] == 1
    assert template["setup"] == [{"run": "make deps", "timeout_s": 600.0}, {"run": "make", "timeout_s": 30.0}]
    same = await acme.put("/v1/templates/app", json={**DECLARED, "resources": {"memory_bytes": 512 * 1024**2}})
    assert (same.status_code, same.json()["revision"]) == (200, 1)
    changed = await acme.put("/v1/templates/app", json={"setup": ["make other"]})
    assert (changed.json()["revision"], changed.json()["repository"]) == (2, None)
    assert (await acme.get("/v1/templates/app")).json() == changed.json()
    assert {t["name"] for t in (await acme.get("/v1/templates")).json()["templates"]} == {"app", "demo"}


async def test_a_template_shows_its_versions(acme: httpx.AsyncClient) -> None:
    lineages = (await acme.get("/v1/templates/demo")).json()["lineages"]
    assert [(lineage["state"], lineage["current"], lineage["ref"]) for lineage in lineages] == [("current", V1, None)]


async def test_a_template_is_deleted_only_when_no_pool_names_it(acme: httpx.AsyncClient) -> None:
    used = await acme.delete("/v1/templates/demo")
    assert (used.status_code, used.json()["code"]) == (409, "template_in_use")
    await acme.put("/v1/templates/app", json={})
    for _ in range(2):
        assert (await acme.delete("/v1/templates/app")).status_code == 204
    assert (await acme.get("/v1/templates/app")).json()["code"] == "template_not_found"


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("UPPER", {}, 400, "invalid_name"),
        ("a%20b", {}, 400, "invalid_name"),
        ("-x", {}, 400, "invalid_name"),
        ("x" * 64, {}, 400, "invalid_name"),
        ("app", {"repository": {"url": "file:///etc"}}, 400, "invalid_repository"),
        ("app", {"repository": {"url": "https://u:p@git.example/x"}}, 400, "credentials_in_url"),
        ("app", {"setup": [" "]}, 400, "invalid_setup"),
        ("app", {"env": {"1A": "x"}}, 400, "invalid_env"),
        ("app", {"resources": {"memory_bytes": "1Ki"}}, 400, "invalid_resources"),
        ("app", {"session_ttl_s": 0}, 400, "invalid_ttl"),
        ("app", {"trusted": True}, 403, "ops_only"),
        ("app", {"bse": "debian12"}, 422, "invalid_request"),
        ("app", {"setup": [{"timeout_s": 1}]}, 422, "invalid_request"),
    ],
)
async def test_what_cannot_be_declared_is_refused(
    acme: httpx.AsyncClient, name: str, body: object, status: int, code: str
) -> None:
    answer = await acme.put(f"/v1/templates/{name}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_a_build_can_be_asked_for_again(api: Api, acme: httpx.AsyncClient) -> None:
    build = await api.world.start_build()
    await api.store.finish_build(replace(build, error="boom", error_code="setup_failed"), None, 500.0)
    lineage = (await acme.get("/v1/templates/demo")).json()["lineages"][0]
    assert (lineage["state"], lineage["failures"], lineage["last_error"]) == ("failed", 1, "boom")
    assert lineage["next_attempt_at"] > 0
    asked = await acme.post("/v1/templates/demo/build")
    assert asked.status_code == 202
    assert (asked.json()["lineage"]["failures"], asked.json()["lineage"]["next_attempt_at"]) == (0, None)
    with_ref = await acme.post("/v1/templates/demo/build", json={"ref": "v2"})
    assert with_ref.json()["lineage"]["ref"] == "v2"
    assert (await acme.post("/v1/templates/nope/build")).status_code == 404
    assert (await acme.post("/v1/templates/demo/build", json={"ref": "a b"})).json()["code"] == "invalid_ref"


async def test_a_pool_is_put_read_explained_and_deleted(api: Api, acme: httpx.AsyncClient) -> None:
    put = await acme.put(
        "/v1/pools/p1", json={"template": "demo", "resources": {"cpu_cores": 2}, "min_ready": 2, "max_total": 5}
    )
    assert put.status_code == 200, put.text
    pool = put.json()
    assert (pool["name"], pool["template"], pool["resources"]["cpu_cores"]) == ("p1", "demo", 2.0)
    assert pool["resources"]["pids"] == 512 and pool["counts"]["ready"] == 0
    assert (pool["current_version"], pool["lineage"]["state"]) == (V1, "current")
    await api.ready()
    demo = (await acme.get("/v1/pools/demo")).json()
    assert demo["counts"] == {"ready": 1, "building": 0, "claimed": 0, "draining": 0, "failed": 0, "waiting": 0}
    assert demo["last_used_at"] is not None
    listed = (await acme.get("/v1/pools")).json()["pools"]
    assert listed == [demo, (await acme.get("/v1/pools/p1")).json()]
    unseen = (await acme.get("/v1/pools/demo/explain")).json()
    assert (unseen["decision"], unseen["at"]) == (None, None)
    decision = PoolDecision(
        pool=POOL,
        target_ready=2,
        bound_by="min_ready",
        ready=1,
        building=0,
        claimed=0,
        draining=0,
        waiting=0,
        reasons=("why",),
    )
    await api.store.explain({POOL: encode_decision(decision, 12.5)})
    told = (await acme.get("/v1/pools/demo/explain")).json()
    assert (told["decision"]["bound_by"], told["decision"]["reasons"], told["at"]) == ("min_ready", ["why"], 12.5)
    for _ in range(2):
        assert (await acme.delete("/v1/pools/p1")).status_code == 204


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"template": "nope"}, 404, "template_not_found"),
        ({"template": "../x"}, 400, "invalid_name"),
        ({"template": "demo", "min_ready": 5, "max_total": 2}, 400, "invalid_pool"),
        ({"template": "demo", "max_total": 0}, 400, "invalid_pool"),
        ({"template": "demo", "min_ready": -1}, 400, "invalid_pool"),
        ({"template": "demo", "ref": "-x"}, 400, "invalid_ref"),
        ({"min_ready": 1}, 422, "invalid_request"),
    ],
)
async def test_a_pool_that_cannot_be_is_refused(acme: httpx.AsyncClient, body: object, status: int, code: str) -> None:
    answer = await acme.put("/v1/pools/p1", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_builds_are_listed_and_their_logs_read_on_from_offsets(
    api: Api, acme: httpx.AsyncClient, tmp_path: Path
) -> None:
    build = await api.world.start_build()
    logs = FolderBuildLogs(tmp_path)
    step = BuildStep(name="setup-1", command="make", timeout_s=60.0, state="running")
    await api.store.update_build(replace(build, steps=(step,)))
    await logs.append(build.id, "clone", "cloned\n")
    await logs.append(build.id, "setup-1", "häl")
    path = f"/v1/builds/{build.id}"
    shown = (await acme.get(path)).json()
    assert (shown["state"], shown["template"], shown["steps"][0]["name"]) == ("running", "demo", "setup-1")
    first = (await acme.get(f"{path}/logs")).json()
    assert [(c["step"], c["text"]) for c in first["chunks"]] == [("clone", "cloned\n"), ("setup-1", "häl")]
    assert (first["next"], first["complete"]) == ({"clone": 7, "setup-1": 4}, False)
    after = [f"{step}:{offset}" for step, offset in first["next"].items()]
    await logs.append(build.id, "setup-1", "f\n")
    more = (await acme.get(f"{path}/logs", params={"after": after, "wait_s": 20})).json()
    assert [(c["step"], c["offset"], c["text"]) for c in more["chunks"]] == [("setup-1", 4, "f\n")]
    one = (await acme.get(f"{path}/logs", params={"step": "setup-1", "after": 4})).json()
    assert [c["text"] for c in one["chunks"]] == ["f\n"]
    await api.store.finish_build(replace(build, error="boom", error_code="setup_failed"), None, 1.0)
    last = (await acme.get(f"{path}/logs", params={"step": "setup-1", "after": 6, "wait_s": 20})).json()
    assert (last["state"], last["chunks"], last["complete"]) == ("failed", [], True)
    listed = (await acme.get("/v1/builds", params={"template": "demo", "limit": 1})).json()["builds"]
    assert [(b["id"], b["error"]) for b in listed] == [(build.id, "boom")]
    assert len((await acme.get("/v1/builds")).json()["builds"]) == 2
    assert (await acme.get(f"{path}/logs", params={"after": "x"})).json()["code"] == "invalid_offset"
    assert (await acme.get("/v1/builds/bd-none")).json()["code"] == "build_not_found"


async def test_sandboxes_are_shown_without_their_doors(api: Api, acme: httpx.AsyncClient) -> None:
    sandbox = await api.ready()
    shown = (await acme.get("/v1/sandboxes", params={"pool": "demo"})).json()["sandboxes"]
    assert [(s["id"], s["state"], s["pool"]) for s in shown] == [(sandbox, "ready", "demo")]
    assert "door" not in shown[0]
    assert (await acme.get(f"/v1/sandboxes/{sandbox}")).json() == shown[0]
    assert (await acme.get("/v1/sandboxes", params={"pool": "other"})).json()["sandboxes"] == []
    assert (await acme.get("/v1/sandboxes/sb-none")).json()["code"] == "sandbox_not_found"


async def test_the_runtime_says_what_it_holds(acme: httpx.AsyncClient) -> None:
    runtime = (await acme.get("/v1/runtime")).json()
    assert runtime["runtime"] == "simulated" and {held["name"] for held in runtime["limits"]} >= {"memory", "disk"}
    assert DEMO == "acme/demo"
