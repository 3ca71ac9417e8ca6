"""The adapter: HTTP/JSON over the gateway's control socket."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import aiohttp
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
        self._session: aiohttp.ClientSession | None = None

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
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            async with self._open_session().request(method, f"http://egress{path}", data=body) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Retryable(
                "egress_unreachable",
                f"The egress gateway does not answer at its control socket {self._control_socket}.",
                hint="Start it with `warmpool egress`, or see its log.",
            ) from error
        if response.status >= 300:
            raise _error(response.status, content)
        return content

    def _open_session(self) -> aiohttp.ClientSession:
        # Made on first use: aiohttp binds a session to the loop that is running then.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path=str(self._control_socket)),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                headers={"Content-Type": "application/json"},
            )
        return self._session


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
