"""The door in: who may do what, binding, readiness, and what a hostile caller gets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from agents.wire import PROTOCOL_VERSION, Binding, Bound, Hello, Ready, mint
from tests.sandboxd.daemon import (
    KEY,
    SANDBOX,
    START,
    Daemon,
    children_of,
    decoded,
    launch,
    make_config,
    problem,
    running,
)


async def test_hello_needs_no_token_and_names_the_protocol(daemon: Daemon) -> None:
    hello = decoded(await daemon.http.get("/v1/hello"), Hello)
    assert (hello.protocol, hello.sandbox_id) == (PROTOCOL_VERSION, SANDBOX)
    assert hello == decoded(await daemon.http.get("/v1/hello"), Hello), "a boot has one id"


async def test_a_token_that_proves_nothing_is_refused(daemon: Daemon) -> None:
    worthless = [
        None,
        "",
        "Bearer",
        "Basic c3lzdGVtOng=",
        "Bearer system",
        "Bearer system.99999999999." + "0" * 64,
        "Bearer " + mint(KEY, "sb-other", "system", time.time() + 600),
        "Bearer " + mint(b"another key, 16+", SANDBOX, "system", time.time() + 600),
        "Bearer " + mint(KEY, SANDBOX, "system", time.time() - 1),
        "Bearer " + mint(KEY, SANDBOX, "se-1", 4e9).replace("se-1", "system"),
        "Bearer a.b.c.d",
        "Bearer \xff.1.\xff",
    ]
    paths = [("POST", "/v1/bind"), ("POST", "/v1/exec"), ("GET", "/v1/files?path=x"), ("GET", "/v1/ready")]
    for authorization in worthless:
        headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
        for method, path in paths:
            answer = await daemon.http.request(method, path, headers=headers)
            assert answer.status_code == 401, authorization
            assert answer.json()["code"] in ("token_missing", "token_invalid")


async def test_a_session_may_act_only_once_it_is_bound(daemon: Daemon) -> None:
    body = {"id": "c", "script": "true"}
    assert problem(await daemon.call("POST", "/v1/exec", "se-1", json=body)) == (403, "not_bound")
    await daemon.bind("se-1")
    assert (await daemon.call("POST", "/v1/exec", "se-1", json=body)).status_code == 200
    assert problem(await daemon.call("GET", "/v1/exec/c", "se-2")) == (403, "not_bound")


async def test_a_session_may_neither_bind_nor_be_root(daemon: Daemon) -> None:
    await daemon.bind("se-1")
    claim = {"claim_id": "se-1", "tenant": "acme", "now": time.time()}
    assert problem(await daemon.call("POST", "/v1/bind", "se-1", json=claim)) == (403, "system_only")
    body = {"id": "c", "script": "id -u", "user": "root"}
    assert problem(await daemon.call("POST", "/v1/exec", "se-1", json=body)) == (403, "system_only")


async def test_binding_is_idempotent_and_keeps_the_first_values(daemon: Daemon) -> None:
    first = decoded(await daemon.bind("se-1", env={"A": "1"}, labels={"team": "x"}), Bound)
    again = decoded(await daemon.bind("se-1", env={"A": "2"}), Bound)
    assert (first.first, again.first) == (True, False)
    assert first.bound_at == again.bound_at
    assert problem(await daemon.bind("se-2")) == (409, "already_bound")
    held = decoded(await daemon.call("GET", "/v1/binding"), Binding)
    assert (held.claim_id, held.tenant, held.labels) == ("se-1", "acme", {"team": "x"})
    assert (await daemon.run("echo $A")).stdout == "1\n"


async def test_of_two_claims_racing_exactly_one_wins(daemon: Daemon) -> None:
    claims = [f"se-{n % 2}" for n in range(100)]
    answers = await asyncio.gather(*(daemon.bind(claim) for claim in claims))
    won = {claim for claim, answer in zip(claims, answers, strict=True) if answer.status_code == 200}
    assert len(won) == 1
    assert sum(answer.status_code == 409 for answer in answers) == 50
    assert sum(answer.status_code == 200 and answer.json()["first"] for answer in answers) == 1
    assert decoded(await daemon.call("GET", "/v1/binding"), Binding).claim_id in won


async def test_an_unbound_sandbox_says_that_nobody_holds_it(daemon: Daemon) -> None:
    held = decoded(await daemon.call("GET", "/v1/binding"), Binding)
    assert (held.claim_id, held.tenant, held.bound_at, held.running) == (None, None, None, 0)


async def test_use_by_a_session_counts_as_activity_and_looking_does_not(daemon: Daemon) -> None:
    await daemon.bind("se-1")
    before = decoded(await daemon.call("GET", "/v1/binding"), Binding).last_activity_at
    assert decoded(await daemon.call("GET", "/v1/binding"), Binding).last_activity_at == before
    await daemon.call("GET", "/v1/exec", "se-1")
    assert decoded(await daemon.call("GET", "/v1/binding"), Binding).last_activity_at > before


BAD_CLAIMS: list[dict[str, Any]] = [
    {"claim": "system"},
    {"claim": "a.b"},
    {"claim": ""},
    {"claim": "x" * 200},
    {"env": {"A=B": "x"}},
    {"env": {"A": "\0"}},
    {"env": {"A": 1}},
    {"surprise": True},
    {"now": "soon"},
]


async def test_a_malformed_claim_binds_nothing(daemon: Daemon) -> None:
    for change in BAD_CLAIMS:
        answer = await daemon.bind(**change)
        assert answer.status_code == 400
        assert decoded(await daemon.call("GET", "/v1/binding"), Binding).claim_id is None


BAD_COMMANDS: list[object] = [
    {"id": "../x", "script": "true"},
    {"id": "", "script": "true"},
    {"id": "a" * 65, "script": "true"},
    {"id": "ümlaut", "script": "true"},
    {"id": "c"},
    {"id": "c", "script": "true", "argv": ["true"]},
    {"id": "c", "argv": []},
    {"id": "c", "argv": ["a\0b"]},
    {"id": "c", "script": "true", "timeout_s": 0},
    {"id": "c", "script": "true", "timeout_s": -1},
    {"id": "c", "script": "true", "grace_s": 1e9},
    {"id": "c", "script": "true", "limits": {"pids": 0}},
    {"id": "c", "script": "true", "env": {"LD PRELOAD": "x"}},
    {"id": "c", "script": "true", "user": "daemon"},
    {"id": "c", "script": "true", "cwd": "/etc"},
    {"id": "c", "script": "true", "cwd": "../.."},
    {"id": "c", "script": "true", "cwd": "a\0b"},
    {"id": "c", "script": "true", "extra": 1},
    [],
    "x",
]


async def test_a_malformed_command_starts_nothing(daemon: Daemon) -> None:
    for body in BAD_COMMANDS:
        assert (await daemon.call("POST", "/v1/exec", json=body)).status_code == 400
        assert (await daemon.call("GET", "/v1/exec")).json() == {"commands": []}


async def test_a_signal_without_a_name_is_refused(daemon: Daemon) -> None:
    status = await daemon.start("sleep 60")
    for name in ("", "NOPE", "9", "KILL; true"):
        answer = await daemon.call("POST", f"/v1/exec/{status.id}/signal", json={"signal": name})
        assert problem(answer) == (400, "bad_signal")


async def test_a_malformed_query_is_refused(daemon: Daemon) -> None:
    status = await daemon.start("true")
    for query in ("after=-1", "after=x", "limit=99999999999999999999", "wait_s=nan", "wait_s=-1"):
        answer = await daemon.call("GET", f"/v1/exec/{status.id}/events?{query}")
        assert problem(answer) == (400, "bad_request")


async def test_a_giant_body_is_refused_before_it_is_read(daemon: Daemon) -> None:
    declared = b"content-length: 1000000000000\r\n\r\n"
    assert b" 413 " in await raw_post(daemon, "/v1/exec", declared, pieces=0)
    undeclared = b"transfer-encoding: chunked\r\n\r\n"
    assert b"body_too_large" in await raw_post(daemon, "/v1/bind", undeclared, pieces=320)
    assert (await daemon.bind("se-1")).status_code == 200


async def raw_post(daemon: Daemon, path: str, rest_of_head: bytes, pieces: int) -> bytes:
    """The answer to a POST of ``pieces`` chunks of 64 KiB, whatever comes of sending them."""
    token = daemon.headers()["authorization"].encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\n" % (path.encode(), token)

    def post() -> bytes:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(20)
            raw.connect(str(daemon.folder / "door.sock"))
            raw.sendall(head + rest_of_head)
            with contextlib.suppress(ConnectionError):
                for _ in range(pieces):
                    raw.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
            return raw.recv(4096)

    return await asyncio.to_thread(post)


async def test_unknown_paths_and_methods_are_problems_too(daemon: Daemon) -> None:
    assert problem(await daemon.call("GET", "/v2/bind")) == (404, "no_such_path")
    assert problem(await daemon.call("GET", "/v1/exec/a/b/c")) == (404, "no_such_path")
    assert problem(await daemon.call("PATCH", "/v1/bind")) == (405, "method_not_allowed")


async def test_nonsense_on_the_wire_leaves_the_door_open(daemon: Daemon) -> None:
    for noise in (b"\0" * 1000, b"GET /\r\n\r\n", b"POST /v1/bind HTTP/1.1\r\ncontent-length: x\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(5)
            raw.connect(str(daemon.folder / "door.sock"))
            raw.sendall(noise)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
    assert (await daemon.http.get("/v1/hello")).status_code == 200


async def test_readiness_waits_for_the_forwarder_and_tells_its_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with running(cgroups=None, egress_socket="/nowhere", proxy_port=port) as daemon:
            ready = decoded(await daemon.call("GET", "/v1/ready?wait_s=20"), Ready)
            assert not ready.ready
            assert ready.parts["daemon"] == "ready"
            assert ready.parts["forwarder"].startswith("failed: cannot listen")


async def test_readiness_is_told_at_once_when_nothing_is_missing(daemon: Daemon) -> None:
    ready = decoded(await daemon.call("GET", "/v1/ready?wait_s=20"), Ready)
    assert (ready.ready, ready.parts) == (True, {"daemon": "ready"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give commands another user")
async def test_a_command_can_neither_read_the_daemon_nor_end_it(daemon: Daemon) -> None:
    pid = daemon.process.pid
    config, spool = daemon.folder / "config" / "sandboxd.json", daemon.folder / "spool"
    script = f"id -u; cat /proc/{pid}/environ; cat {config}; kill -9 {pid}; ls {spool}"
    result = await daemon.run(script)
    assert result.stdout == "1000\n"
    assert KEY.hex() not in result.stderr
    assert (await daemon.http.get("/v1/hello")).status_code == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
async def test_a_key_that_the_sandboxs_user_could_read_is_refused() -> None:
    folder = Path(tempfile.mkdtemp(prefix="wp-sbx-"))
    try:
        folder.chmod(0o755)
        config = make_config(folder)
        config.parent.chmod(0o755)
        config.chmod(0o644)
        process = launch([*START, str(config)])
        assert await asyncio.to_thread(process.wait, 20) == 2
        assert not (folder / "door.sock").exists()
    finally:
        shutil.rmtree(folder)


async def test_orphans_are_reaped_by_the_daemon(daemon: Daemon) -> None:
    result = await daemon.run("(setsid sleep .3 </dev/null >/dev/null 2>&1 & echo $!)")
    orphan = int(result.stdout)
    assert orphan in {pid for pid, _ in children_of(daemon.process.pid)}
    deadline = time.monotonic() + 10
    while Path(f"/proc/{orphan}").exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
