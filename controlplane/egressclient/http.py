"""The adapter: HTTP/JSON over the gateway's control socket."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from agents.wire import Problem
from agents.wire.egress import DoorList, DoorReport, DoorSpec, GatewayHealth
from controlplane.errors import Conflict, NotFound, Permanent, Retryable, WarmpoolError
from controlplane.ids import SandboxId

_Body = TypeVar("_Body", bound=msgspec.Struct)


class HttpEgressGateway:
    """Talks to the gateway at ``control_socket``. A call takes at most ``timeout_s`` seconds."""

    def __init__(self, control_socket: Path, *, timeout_s: float = 5.0) -> None:
        self._control_socket = control_socket
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def put_door(self, sandbox: SandboxId, spec: DoorSpec) -> DoorReport:
        return _decode(await self._call("PUT", _door_path(sandbox), msgspec.json.encode(spec)), DoorReport)

    async def get_door(self, sandbox: SandboxId) -> DoorReport:
        return _decode(await self._call("GET", _door_path(sandbox)), DoorReport)

    async def list_doors(self) -> list[DoorReport]:
        return _decode(await self._call("GET", "/v1/doors"), DoorList).doors

    async def delete_door(self, sandbox: SandboxId) -> None:
        await self._call("DELETE", _door_path(sandbox))

    async def health(self) -> GatewayHealth:
        return _decode(await self._call("GET", "/v1/health"), GatewayHealth)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            answer = await self._connected().request(method, path, content=body)
        except (httpx.HTTPError, OSError) as error:
            raise Retryable(
                "egress_unreachable",
                f"The egress gateway does not answer at its control socket {self._control_socket}.",
                hint="Start it with `warmpool egress`, or see its log.",
            ) from error
        if answer.status_code >= 300:
            raise _error(answer.status_code, answer.content)
        return answer.content

    def _connected(self) -> httpx.AsyncClient:
        # Made on first use: its connections belong to the loop that is running then.
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=str(self._control_socket)),
                base_url="http://egress",
                timeout=self._timeout_s,
                headers={"Content-Type": "application/json"},
            )
        return self._client


def _door_path(sandbox: SandboxId) -> str:
    return f"/v1/doors/{quote(sandbox, safe='')}"


def _decode(content: bytes, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise Permanent(
            "egress_answer_not_understood",
            "The egress gateway's answer has another form than this version expects.",
            hint="Run the gateway and the control plane from the same version.",
        ) from error


def _error(status: int, content: bytes) -> WarmpoolError:
    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.DecodeError:
        problem = Problem(code="egress_failed", detail=f"The egress gateway answered with status {status}.")
    if status >= 500:
        return Retryable("egress_failed", problem.detail, hint=problem.hint)
    kind = {404: NotFound, 409: Conflict}.get(status, Permanent)
    return kind(problem.code, problem.detail, hint=problem.hint)
