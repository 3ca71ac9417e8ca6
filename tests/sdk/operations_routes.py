"""The part of the contract that operators use: templates, pools, builds, sandboxes, events, keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

RESOURCES = {"memory_bytes": 536870912, "cpu_cores": 1.0, "pids": 512, "disk_bytes": None}
LINEAGE = {"ref": None, "state": "built", "current": "v-1", "failures": 0, "last_error": None, "next_attempt_at": 0.0}


def answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def missing(code: str) -> Response:
    body = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "There is none.", "code": code}
    return Response(msgspec.json.encode({**body, "hint": "Look at the list."}), 404, None, "application/problem+json")


class Operations:
    def __init__(self) -> None:
        self.templates: dict[str, dict[str, Any]] = {}
        self.pools: dict[str, dict[str, Any]] = {}
        self.log = "Collecting flask\ninstalled\n"
        self.keys: dict[str, dict[str, Any]] = {}

    # -- templates

    async def put_template(self, request: Request) -> Response:
        name, body = request.path_params["name"], await request.json()
        old = self.templates.get(name)
        setup = [{"run": s, "timeout_s": 600.0} if isinstance(s, str) else s for s in body.pop("setup", [])]
        revision = 1 if old is None else old["revision"] + (body != old["asked"])
        new = {
            "name": name,
            "tenant": "acme",
            "setup": setup,
            "revision": revision,
            "lineages": [LINEAGE],
            "asked": body,
        }
        self.templates[name] = {"resources": RESOURCES, **body, **new}
        self.templates[name]["resources"] = RESOURCES
        return answer(self.templates[name], 201 if old is None else 200)

    async def template(self, request: Request) -> Response:
        found = self.templates.get(request.path_params["name"])
        return answer(found) if found else missing("template_not_found")

    async def list_templates(self, request: Request) -> Response:
        return answer({"templates": list(self.templates.values())})

    async def delete_template(self, request: Request) -> Response:
        self.templates.pop(request.path_params["name"], None)
        return Response(status_code=204)

    async def build(self, request: Request) -> Response:
        return answer({"lineage": {**LINEAGE, "ref": (await request.json()).get("ref")}}, 202)

    # -- pools

    async def put_pool(self, request: Request) -> Response:
        name, body = request.path_params["name"], await request.json()
        counts = {"ready": 1, "building": 0, "claimed": 2, "draining": 0, "failed": 0, "waiting": 0}
        old = self.pools.get(name, {})
        self.pools[name] = {"name": name, "tenant": "acme", "key": f"acme/{name}", "counts": counts, **body}
        self.pools[name] |= {"resources": RESOURCES, "pinned_ready": old.get("pinned_ready"), "lineage": LINEAGE}
        return answer(self.pools[name])

    async def pool(self, request: Request) -> Response:
        found = self.pools.get(request.path_params["name"])
        return answer(found) if found else missing("pool_not_found")

    async def list_pools(self, request: Request) -> Response:
        return answer({"pools": list(self.pools.values())})

    async def delete_pool(self, request: Request) -> Response:
        self.pools.pop(request.path_params["name"], None)
        return Response(status_code=204)

    async def pin(self, request: Request) -> Response:
        pool = self.pools[request.path_params["name"]]
        pool["pinned_ready"] = (await request.json())["ready"]
        return answer(pool)

    async def explain(self, request: Request) -> Response:
        pool = self.pools.get(request.path_params["name"])
        if pool is None:
            return missing("pool_not_found")
        counts = {name: pool["counts"][name] for name in ("ready", "building", "claimed", "draining", "waiting")}
        decision = {"target_ready": 1, "bound_by": "min_ready", "reasons": ["min_ready is 1"], **counts}
        return answer({"pool": pool["name"], "decision": decision, "at": 1.0, "lineage": LINEAGE})

    # -- builds

    def shown_build(self) -> dict[str, Any]:
        step = {"name": "setup-1", "command": "pip install flask", "state": "succeeded", "exit_code": 0}
        return {"id": "bd-1", "state": "succeeded", "template": "demo", "steps": [step], "created_at": 1.0}

    async def list_builds(self, request: Request) -> Response:
        return answer({"builds": [self.shown_build()]})

    async def get_build(self, request: Request) -> Response:
        return answer(self.shown_build()) if request.path_params["id"] == "bd-1" else missing("build_not_found")

    async def logs(self, request: Request) -> Response:
        """At most 10 bytes at a time."""
        asked = dict(item.split(":") for item in request.query_params.getlist("after"))
        after = int(asked.get("setup-1", 0))
        text = self.log[after : after + 10]
        chunks = [{"step": "setup-1", "offset": after, "text": text}] if text else []
        following = {"setup-1": after + len(text)}
        return answer(
            {"build": "bd-1", "state": "succeeded", "chunks": chunks, "next": following, "complete": not text}
        )

    # -- the rest

    async def sandboxes(self, request: Request) -> Response:
        return answer({"sandboxes": [{"id": "sb-1", "state": "ready", "pool": "demo", "runtime": "simulated"}]})

    async def events(self, request: Request) -> Response:
        after = int(request.headers.get("last-event-id") or request.query_params.get("after", "0").replace("$", "0"))
        found = [
            {"id": str(n), "at": 1.0, "kind": "session.attached", "subject": f"se-{n}", "tenant": "acme", "data": {}}
            for n in range(after + 1, 6)
        ]
        if request.query_params.get("follow") != "1":
            return answer({"events": found, "next": "5"})

        async def lines() -> AsyncIterator[bytes]:
            yield b": hello\n\n"
            for event in found:
                yield b"id: %s\nevent: session.attached\ndata: %s\n\n" % (
                    event["id"].encode(),
                    msgspec.json.encode(event),
                )
            await asyncio.sleep(30)

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def create_key(self, request: Request) -> Response:
        body = await request.json()
        key = {"id": f"k{len(self.keys)}", "tenant": "acme", "note": "", "created_at": 1.0, "revoked_at": None, **body}
        self.keys[key["id"]] = key
        return answer({**key, "key": "wp_k_secret"}, 201)

    async def list_keys(self, request: Request) -> Response:
        return answer({"keys": list(self.keys.values())})

    async def revoke(self, request: Request) -> Response:
        key = self.keys.get(request.path_params["id"])
        if key is None:
            return missing("key_not_found")
        key["revoked_at"] = 2.0
        return answer(key)

    async def whoami(self, request: Request) -> Response:
        return answer({"tenant": "acme", "role": "ops", "key": "k0"})

    async def readyz(self, request: Request) -> Response:
        return answer({"ready": True, "parts": [{"name": "store", "ok": True, "detail": ""}]})


def operations_routes() -> list[Route]:
    ops = Operations()
    return [
        Route("/v1/templates", ops.list_templates),
        Route("/v1/templates/{name}", ops.put_template, methods=["PUT"]),
        Route("/v1/templates/{name}", ops.template, methods=["GET"]),
        Route("/v1/templates/{name}", ops.delete_template, methods=["DELETE"]),
        Route("/v1/templates/{name}/build", ops.build, methods=["POST"]),
        Route("/v1/pools", ops.list_pools),
        Route("/v1/pools/{name}", ops.put_pool, methods=["PUT"]),
        Route("/v1/pools/{name}", ops.pool, methods=["GET"]),
        Route("/v1/pools/{name}", ops.delete_pool, methods=["DELETE"]),
        Route("/v1/pools/{name}/pin", ops.pin, methods=["PUT"]),
        Route("/v1/pools/{name}/explain", ops.explain),
        Route("/v1/builds", ops.list_builds),
        Route("/v1/builds/{id}", ops.get_build),
        Route("/v1/builds/{id}/logs", ops.logs),
        Route("/v1/sandboxes", ops.sandboxes),
        Route("/v1/events", ops.events),
        Route("/v1/keys", ops.create_key, methods=["POST"]),
        Route("/v1/keys", ops.list_keys, methods=["GET"]),
        Route("/v1/keys/{id}", ops.revoke, methods=["DELETE"]),
        Route("/v1/whoami", ops.whoami),
        Route("/readyz", ops.readyz),
    ]
