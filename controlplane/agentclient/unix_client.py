"""AgentClient over Unix sockets of the host.

A warm claim waits for one bind on a connection of its own, so the transport is our own thin one
(``connection``): a bind against the same small server took 0.27 ms p50, with aiohttp's client 0.40 ms.
Tokens are minted per call: two HMACs take 3 µs, less than keeping and expiring a cache of them.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec

from agents.wire import (
    PROTOCOL_VERSION,
    Bind,
    Binding,
    Bound,
    EventPage,
    ExecEvent,
    ExecList,
    ExecStart,
    ExecStatus,
    FileInfo,
    FileList,
    Hello,
    Ready,
    SignalRequest,
    binding_proof,
    mint,
    sandbox_key,
)
from agents.wire.token import SYSTEM
from controlplane.agentclient.answers import decode, problem
from controlplane.agentclient.connection import BodyTooLarge, ConnectionCut, DoorConnection
from controlplane.agentclient.doorpool import DoorPool
from controlplane.agentclient.ndjson import events_of
from controlplane.agentclient.port import Door
from controlplane.clock import Clock, SystemClock
from controlplane.errors import Permanent, Retryable
from controlplane.ids import SandboxId, SessionId

T = TypeVar("T")
TOKEN_LIFE_S = 60.0
MAX_ANSWER_BYTES = 32 * 1024 * 1024


class UnixAgentClient:
    """``call_timeout_s`` bounds each call, over what the call itself waits for; ``bind_timeout_s`` a bind;
    ``idle_timeout_s`` the silence in an upload or download. A stream of events may be silent for ever."""

    def __init__(
        self,
        deployment_secret: bytes,
        *,
        clock: Clock | None = None,
        pool: DoorPool | None = None,
        call_timeout_s: float = 10.0,
        bind_timeout_s: float = 2.0,
        idle_timeout_s: float = 60.0,
    ) -> None:
        self._secret = deployment_secret
        self._clock = clock or SystemClock()
        self._pool = pool or DoorPool()
        self._call_timeout_s = call_timeout_s
        self._bind_timeout_s = bind_timeout_s
        self._idle_timeout_s = idle_timeout_s

    async def hello(self, door: Door) -> Hello:
        answer = await self._call(door, None, "GET", "/v1/hello", Hello)
        if answer.protocol != PROTOCOL_VERSION:
            raise Permanent(
                "protocol_mismatch",
                f"sandboxd of {door.sandbox} speaks protocol {answer.protocol}, this side {PROTOCOL_VERSION}.",
                hint="Build the template again, so that its sandboxes get the present daemon.",
            )
        return answer

    async def ready(self, door: Door, wait_s: float) -> Ready:
        return await self._call(door, None, "GET", f"/v1/ready?wait_s={wait_s:g}", Ready, wait_s=wait_s)

    async def bind(
        self, door: Door, session: SessionId, tenant: str, env: Mapping[str, str], labels: Mapping[str, str]
    ) -> Bound:
        body = Bind(
            claim_id=session,
            tenant=tenant,
            proof=binding_proof(self._secret, door.sandbox, session, tenant),
            env=dict(env),
            labels=dict(labels),
            now=self._clock.now(),
        )
        return await self._call(
            door, None, "POST", "/v1/bind", Bound, body=_encoded(body), timeout_s=self._bind_timeout_s
        )

    async def binding(self, door: Door) -> Binding:
        """Permanent ``binding_not_proven`` when a session is named that this deployment did not bind to it."""
        found = await self._call(door, None, "GET", "/v1/binding", Binding)
        if found.claim_id is not None:
            proof = binding_proof(self._secret, door.sandbox, found.claim_id, found.tenant or "")
            if not hmac.compare_digest(proof.encode(), found.proof.encode()):
                raise Permanent(
                    "binding_not_proven",
                    f"Sandbox {door.sandbox} says that session {found.claim_id[:80]!r} holds it, and can't prove it.",
                )
        return found

    async def exec_start(self, door: Door, session: SessionId | None, start: ExecStart) -> ExecStatus:
        return await self._call(door, session, "POST", "/v1/exec", ExecStatus, body=_encoded(start))

    async def exec_status(self, door: Door, session: SessionId | None, exec_id: str) -> ExecStatus:
        return await self._call(door, session, "GET", _exec(exec_id), ExecStatus)

    async def exec_list(self, door: Door, session: SessionId | None) -> ExecList:
        return await self._call(door, session, "GET", "/v1/exec", ExecList)

    async def exec_events(
        self, door: Door, session: SessionId | None, exec_id: str, after: int, wait_s: float, limit: int = 1000
    ) -> EventPage:
        query = f"?after={after:d}&wait_s={wait_s:g}&limit={limit:d}"
        return await self._call(door, session, "GET", _exec(exec_id) + "/events" + query, EventPage, wait_s=wait_s)

    async def exec_stream(
        self, door: Door, session: SessionId | None, exec_id: str, after: int
    ) -> AsyncIterator[ExecEvent]:
        target = f"{_exec(exec_id)}/stream?after={after:d}"
        async with self._open(door, session, "GET", target, timeout_s=self._call_timeout_s) as connection:
            async for event in events_of(connection.chunks(), after):
                yield event

    async def exec_stdin(self, door: Door, session: SessionId | None, exec_id: str, data: bytes, eof: bool) -> None:
        # Never sent twice: a repeat would be input twice.
        target = f"{_exec(exec_id)}/stdin?eof={int(eof)}"
        await self._call(door, session, "POST", target, None, body=data, replay=False)

    async def exec_signal(
        self, door: Door, session: SessionId | None, exec_id: str, request: SignalRequest
    ) -> ExecStatus:
        body = _encoded(request)
        return await self._call(door, session, "POST", _exec(exec_id) + "/signal", ExecStatus, body=body)

    async def file_read(self, door: Door, session: SessionId | None, path: str) -> AsyncIterator[bytes]:
        target = "/v1/files?" + urlencode({"path": path})
        async with self._open(door, session, "GET", target, timeout_s=self._call_timeout_s) as connection:
            chunks = aiter(connection.chunks())
            while True:
                try:
                    async with asyncio.timeout(self._idle_timeout_s):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    connection.abort("silent for too long")
                    raise Retryable(
                        "stream_broken", f"Sandbox {door.sandbox} stopped sending {path[:200]!r}."
                    ) from None
                yield chunk

    async def file_write(
        self, door: Door, session: SessionId | None, path: str, data: AsyncIterator[bytes], mode: str | None
    ) -> FileInfo:
        query = {"path": path} if mode is None else {"path": path, "mode": mode}
        target = "/v1/files?" + urlencode(query)
        async with self._open(door, session, "PUT", target, timeout_s=None, upload=data) as connection:
            return decode(await connection.read(MAX_ANSWER_BYTES), FileInfo, door)

    async def file_list(self, door: Door, session: SessionId | None, path: str) -> FileList:
        return await self._call(door, session, "GET", "/v1/files/list?" + urlencode({"path": path}), FileList)

    async def file_delete(self, door: Door, session: SessionId | None, path: str, recursive: bool) -> None:
        target = "/v1/files?" + urlencode({"path": path, "recursive": str(int(recursive))})
        await self._call(door, session, "DELETE", target, None, timeout_s=self._idle_timeout_s)

    def forget(self, sandbox: SandboxId) -> None:
        self._pool.forget(sandbox)

    async def close(self) -> None:
        self._pool.close()

    # -- one call

    async def _call(
        self,
        door: Door,
        session: SessionId | None,
        method: str,
        target: str,
        answer: type[T] | None,
        *,
        body: bytes = b"",
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        replay: bool = True,
    ) -> T:
        limit_s = wait_s + (self._call_timeout_s if timeout_s is None else timeout_s)
        try:
            async with (
                asyncio.timeout(limit_s),
                self._open(door, session, method, target, body=body, replay=replay) as connection,
            ):
                payload = await connection.read(MAX_ANSWER_BYTES)
        except TimeoutError:
            raise Retryable(
                "sandbox_unreachable", f"Sandbox {door.sandbox} did not answer {method} within {limit_s:g} s."
            ) from None
        return decode(payload, answer, door)

    @asynccontextmanager
    async def _open(
        self,
        door: Door,
        session: SessionId | None,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        upload: AsyncIterator[bytes] | None = None,
        timeout_s: float | None = None,
        replay: bool = True,
    ) -> AsyncGenerator[DoorConnection]:
        """A connection whose answer has begun with a success; errors of sandboxd are raised as ours.

        ``timeout_s`` bounds the time to the head of the answer only."""
        head = self._head(door, session, method, target, body, chunked=upload is not None)
        may_repeat = replay and upload is None
        connection, status = await self._send(door, head, upload, timeout_s, may_repeat)
        try:
            if status >= 300 or status < 200:
                raise problem(status, await connection.read(MAX_ANSWER_BYTES), door)
            yield connection
        except ConnectionCut as cut:
            raise Retryable("stream_broken", f"Sandbox {door.sandbox} broke off its answer: {cut}.") from cut
        except BodyTooLarge:
            raise Permanent("answer_too_large", f"Sandbox {door.sandbox} sent an answer that is too large.") from None
        finally:
            self._pool.release(door, connection)

    async def _send(
        self, door: Door, head: bytes, upload: AsyncIterator[bytes] | None, timeout_s: float | None, may_repeat: bool
    ) -> tuple[DoorConnection, int]:
        for fresh in (not may_repeat, True):
            connection, used = await self._pool.acquire(door, fresh=fresh)
            try:
                async with asyncio.timeout(timeout_s):
                    return connection, await connection.request(head, upload)
            except ConnectionCut as cut:
                self._pool.release(door, connection)
                # A resting connection that the peer closed just now: once more on a new one.
                if not used or cut.answered:
                    raise Retryable("sandbox_unreachable", f"Sandbox {door.sandbox} closed its door: {cut}.") from cut
            except TimeoutError:
                self._pool.release(door, connection)
                raise Retryable(
                    "sandbox_unreachable", f"Sandbox {door.sandbox} did not answer within {timeout_s} s."
                ) from None
            except BaseException:
                self._pool.release(door, connection)
                raise
        raise AssertionError("a fresh connection either answers or raises")

    def _head(
        self, door: Door, session: SessionId | None, method: str, target: str, body: bytes, *, chunked: bool
    ) -> bytes:
        key = sandbox_key(self._secret, door.sandbox)
        token = mint(key, door.sandbox, session or SYSTEM, self._clock.now() + TOKEN_LIFE_S)
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: sandboxd\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\n{length}\r\n\r\n"
        )
        return head.encode("ascii") + body


def _exec(exec_id: str) -> str:
    return "/v1/exec/" + quote(exec_id, safe="")


def _encoded(message: msgspec.Struct) -> bytes:
    """Permanent ``invalid_text`` for a text that no JSON can hold: it came from a caller."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError as error:
        raise Permanent("invalid_text", "A text is not valid Unicode (a lone surrogate).") from error
