"""The OpenAPI document, health and metrics."""

from __future__ import annotations

import re

import httpx
from prometheus_client.parser import text_string_to_metric_families

from controlplane.metrics import list_metrics, provision_step_counter
from controlplane.model.actions import PoolDecision
from controlplane.planning.explain import encode_decision
from tests.api.service import Api
from tests.api.test_sessions import attached
from tests.store.world import POOL


async def test_the_document_is_openapi_31_whose_references_lead_somewhere(api: Api) -> None:
    document = (await api.bare().get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/([^"]+)"', (await api.bare().get("/openapi.json")).text):
        assert name in schemas, name
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description") or operation.get("summary"), (method, path)
            if path.startswith("/v1/"):
                assert operation["security"] == [{"ApiKey": []}], (method, path)
                assert {"400", "401", "403", "503"} <= set(operation["responses"]), (method, path)
                problem = operation["responses"]["401"]["content"]
                assert "application/problem+json" in problem
    assert schemas["AttachIn"]["examples"] and schemas["SessionOut"]["examples"]
    assert schemas["ExecEventOut"]["required"] == ["seq", "kind", "at"]
    assert (await api.bare().get("/docs")).status_code == 200


async def test_examples_of_the_document_are_valid(acme: httpx.AsyncClient) -> None:
    schemas = (await acme.get("/openapi.json")).json()["components"]["schemas"]
    for example in schemas["TemplateIn"]["examples"]:
        assert (await acme.put("/v1/templates/demo", json=example)).status_code == 200
    for example in schemas["AttachIn"]["examples"]:
        answer = await acme.post("/v1/sessions", json=example | {"wait_s": 0})
        assert answer.status_code == 202, answer.text
    for example in schemas["PoolIn"]["examples"]:
        assert (await acme.put("/v1/pools/other", json=example)).status_code == 200


async def test_ready_names_the_part_that_is_missing(api: Api) -> None:
    bare = api.bare()
    assert (await bare.get("/healthz")).text == "ok\n"
    first = await bare.get("/readyz")
    assert first.status_code == 503
    assert {p["name"]: p["ok"] for p in first.json()["parts"]} == {"store": True, "scheduler": False, "workers": False}
    await api.store.announce("worker", "w1", "{}", 60.0)
    assert "compares records" in (await bare.get("/readyz")).text
    await api.store.announce("scheduler", "s1", "{}", 60.0)
    assert (await bare.get("/readyz")).json()["ready"] is True
    await api.store.announce("worker", "w1", "{}", -1.0)
    assert (await bare.get("/readyz")).status_code == 503


async def test_the_metrics_page_has_every_metric_with_help_and_the_values_of_what_happened(
    api: Api, acme: httpx.AsyncClient
) -> None:
    await attached(api, acme)
    await api.ready()
    await acme.post("/v1/sessions", json={"pool": "nope"})
    decision = PoolDecision(
        pool=POOL, target_ready=4, bound_by="min_ready", ready=1, building=0, claimed=1, draining=0, waiting=0
    )
    await api.store.explain({POOL: encode_decision(decision, 1.0)})
    for seconds in (0.5, 1.5):
        await api.store.count(provision_step_counter("create", True, "sum"), seconds)
        await api.store.count(provision_step_counter("create", True, "count"))
    page = (await api.bare().get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(page)}
    for definition in list_metrics():
        family = families[definition.name.removesuffix("_total")]
        assert family.documentation == definition.help and definition.help.endswith(".")
    values = {(s.name, *sorted(s.labels.values())): s.value for f in families.values() for s in f.samples}
    assert values[("warmpool_pool_sandboxes", "acme/demo", "ready")] == 1
    assert values[("warmpool_pool_sandboxes", "acme/demo", "claimed")] == 1
    assert values[("warmpool_pool_desired", "acme/demo")] == 4
    assert values[("warmpool_attach_seconds_count", "ready_in_pool", "warm")] == 1
    assert values[("warmpool_claims_total", "claimed")] == 1
    assert values[("warmpool_provision_step_seconds_sum", "create", "true")] == 2.0
    assert values[("warmpool_provision_step_seconds_count", "create", "true")] == 2
    assert values[("warmpool_http_requests_total", "/v1/sessions", "201", "POST")] == 1
    assert values[("warmpool_http_requests_total", "/v1/sessions", "404", "POST")] == 1
    assert values[("warmpool_store_up",)] == 1


async def test_labels_of_metrics_stay_few_whatever_is_asked_for(api: Api, acme: httpx.AsyncClient) -> None:
    for number in range(20):
        await acme.get(f"/v1/sessions/se-{number}")
        await acme.get(f"/nothing/{number}")
        await acme.request(f"METHOD{number}", "/v1/sessions")
    page = (await api.bare().get("/metrics")).text
    routes = set(re.findall(r'warmpool_http_requests_total{method="(\w+)",route="([^"]+)"', page))
    assert ("GET", "/v1/sessions/{session_id}") in routes and ("GET", "unmatched") in routes
    assert len(routes) < 8
