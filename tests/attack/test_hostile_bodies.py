"""Bodies that a hostile client may send: each is refused with a typed answer, none is a fault of ours."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import pytest

from agents.wire import Problem
from controlplane.agentclient.answers import problem
from controlplane.agentclient.port import Door
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.errors import Permanent
from controlplane.ids import SandboxId, SessionId
from tests.agentclient.daemon import Daemon as FakeDaemon
from tests.agentclient.daemon import serving
from tests.api.service import Api
from tests.api.test_sessions import attached

JSON = {"Content-Type": "application/json"}
HUGE = "1" + "0" * 400
SECRET = b"s" * 32


@pytest.mark.parametrize("field", ["memory_bytes", "cpu_cores", "pids", "disk_bytes"])
async def test_a_whole_number_too_long_for_a_float_is_an_invalid_size(acme: httpx.AsyncClient, field: str) -> None:
    sizes = f'{{"{field}": {HUGE}}}'
    for method, path, body in (
        ("PUT", "/v1/templates/huge", f'{{"resources": {sizes}}}'),
        ("PUT", "/v1/pools/huge", f'{{"template": "demo", "resources": {sizes}}}'),
        ("POST", "/v1/sessions", f'{{"template": "demo", "resources": {sizes}}}'),
    ):
        answer = await acme.request(method, path, content=body, headers=JSON)
        assert answer.status_code in (400, 422), (path, answer.text)
        assert len(answer.content) < 2000


@pytest.mark.parametrize("field", ["timeout_s", "grace_s"])
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
async def test_a_time_limit_that_is_no_number_is_refused_rather_than_dropped(
    api: Api, acme: httpx.AsyncClient, field: str, value: str
) -> None:
    session = await attached(api, acme)
    path = f"/v1/sessions/{session['id']}/exec"
    answer = await acme.post(path, content=f'{{"script": "true", "{field}": {value}}}', headers=JSON)
    assert answer.status_code == 422, answer.text
    answer = await acme.post(path, content=f'{{"script": "true", "limits": {{"cpu_cores": {value}}}}}', headers=JSON)
    assert answer.status_code == 422, answer.text


async def test_input_of_a_command_is_not_gathered_beyond_what_the_daemon_takes(
    api: Api, acme: httpx.AsyncClient
) -> None:
    session = await attached(api, acme)
    path = f"/v1/sessions/{session['id']}/exec/ex-1/stdin"
    answer = await acme.post(path, content=b"x" * (4 * 1024 * 1024 + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_a_position_beyond_any_event_is_refused_before_the_store_is_asked(acme: httpx.AsyncClient) -> None:
    for position in ("9" * 20, "1-" + "9" * 20, "٣"):
        answer = await acme.get("/v1/events", params={"after": position})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_position")


async def test_a_text_that_no_json_can_hold_is_the_callers_error(tmp_path: Path) -> None:
    from agents.wire import ExecStart, SignalRequest

    door, session = Door(SandboxId("sb-1"), f"unix:{tmp_path}/door"), SessionId("se-1")
    client = UnixAgentClient(SECRET)
    with serving(FakeDaemon(SECRET, "sb-1").app(), tmp_path / "door"):
        with pytest.raises(Permanent) as refused:
            await client.exec_start(door, session, ExecStart(id="x", script="\ud800"))
        assert refused.value.code == "invalid_text"
        with pytest.raises(Permanent) as refused:
            await client.exec_signal(door, session, "x", SignalRequest(signal="\ud800"))
        assert refused.value.code == "invalid_text"
    await client.close()


@pytest.mark.parametrize("status", [401, 404, 409, 429, 503])
@pytest.mark.parametrize("code", ["invalid_key", "over_quota", "build_ended", "store_unavailable", "session_ended"])
def test_a_sandbox_cannot_speak_with_the_control_planes_own_codes(status: int, code: str) -> None:
    sent = msgspec.json.encode(Problem(code=code, detail="trust me"))
    error = problem(status, sent, Door(SandboxId("sb-1"), "unix:/nowhere"))
    assert error.code == "sandbox_error"
