"""One client connection of a door: read a head, decide, dial, carry, and say what happened.

Every request is decided anew, also on a connection that is kept alive. Refusals close the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from agents.egress.audit import AuditSink, Outcome, Row
from agents.egress.counters import DoorCounters
from agents.egress.dial import Dialer, DialError, Upstream
from agents.egress.forward import Exchange, ExchangeError
from agents.egress.head import BadHead, RequestHead, parse_head
from agents.egress.limits import CHUNK_BYTES, WRITE_LIMIT_BYTES, Limits
from agents.egress.policy import Denial, Grant, Policy, decide
from agents.egress.relay import IdleTimer, Inbound, close_writer, relay, reset
from agents.egress.replies import refusal, without_secrets

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all doors of a gateway use. ``now`` gives epoch seconds."""

    dialer: Dialer
    audit: AuditSink
    limits: Limits
    now: Callable[[], float]


class ClientConnection:
    """``policy`` is called for each decision, so that a replaced policy counts at once."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        shared: Shared,
        door_id: str,
        labels: Callable[[], dict[str, str]],
        policy: Callable[[], Policy],
        counters: DoorCounters,
    ) -> None:
        self._client = Inbound(reader)
        self._writer = writer
        self._shared = shared
        self._door_id = door_id
        self._labels = labels
        self._policy = policy
        self._counters = counters
        self._upstream: Upstream | None = None
        self._grant: Grant | None = None
        self._cut = ""
        self._up = 0
        self._down = 0

    async def serve(self) -> None:
        """Until the connection has ended. Raises nothing but CancelledError."""
        self._writer.transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)
        try:
            with contextlib.suppress(OSError):
                while await self._serve_one():
                    pass
        finally:
            if self._upstream is not None:
                self._upstream.writer.transport.abort()
            await close_writer(self._writer, linger_s=self._shared.limits.linger_s)

    def abort(self, code: str) -> None:
        """Cuts both sides at once, for the reason ``code``; ``serve`` ends by itself."""
        self._cut = code
        reset(self._writer)
        if self._upstream is not None:
            reset(self._upstream.writer)

    def abort_unless_allowed(self) -> None:
        """Cuts the connection if it is being used for a target that the present policy does not allow."""
        if self._grant is not None and isinstance(decide(self._policy(), self._grant.target), Denial):
            self.abort("policy_changed")

    async def _serve_one(self) -> bool:
        limits = self._shared.limits
        self._upstream, self._up, self._down = None, 0, 0
        try:
            raw = await self._client.read_head(first_byte_s=limits.idle_s, head_s=limits.head_s)
            if raw is None:
                return False
            head = parse_head(raw)
        except BadHead as error:
            await self._refuse("bad_request", error.code, error.detail, target=error.target, status=error.status)
            return False
        decision = decide(self._policy(), head.target)
        if isinstance(decision, Denial):
            await self._refuse("denied", decision.reason, decision.detail, head=head, status=403)
            return False
        return await self._carry(head, decision)

    async def _carry(self, head: RequestHead, grant: Grant) -> bool:
        started = self._shared.now()
        keep = False
        try:
            self._upstream = await self._shared.dialer.dial(grant, tunnel=head.form == "connect")
            decision = decide(self._policy(), head.target)
            if isinstance(decision, Denial):
                # The policy was replaced during the dialling.
                await self._refuse("denied", decision.reason, decision.detail, head=head, status=403)
                return False
            self._grant = grant
            self._counters.allowed += 1
            keep = await self._carry_through(head, self._upstream)
        except DialError as error:
            await self._refuse("failed", error.code, error.detail, head=head, status=error.status)
            return False
        except ExchangeError as error:
            if not error.started and not self._cut:
                outcome: Outcome = "bad_request" if error.code == "bad_body" else "failed"
                await self._refuse(outcome, error.code, error.detail, head=head, status=error.status)
                return False
            # Half an answer has gone out: only a cut tells the client that the rest is missing.
            self.abort(self._cut or error.code)
        except OSError:
            self._cut = self._cut or "connection_lost"
        except asyncio.CancelledError:
            self._record("failed", self._cut or "gateway_stopped", "", head, started=started)
            raise
        finally:
            self._grant = None
        self._record("failed" if self._cut else "allowed", self._cut, "", head, started=started)
        return keep and not self._cut

    async def _carry_through(self, head: RequestHead, upstream: Upstream) -> bool:
        timer = IdleTimer(self._shared.limits.idle_s, lambda: self.abort("idle"))

        def on_up(size: int) -> None:
            timer.touch()
            self._up += size
            self._counters.bytes_up += size

        def on_down(size: int) -> None:
            timer.touch()
            self._down += size
            self._counters.bytes_down += size

        try:
            if head.form == "absolute":
                return await Exchange(
                    head,
                    client=self._client,
                    client_writer=self._writer,
                    upstream=upstream,
                    on_up=on_up,
                    on_down=on_down,
                ).run()
            self._writer.write(_ESTABLISHED)
            await relay(self._client.read, self._writer, upstream.reader, upstream.writer, on_up=on_up, on_down=on_down)
            return False
        finally:
            timer.stop()
            await close_writer(upstream.writer, linger_s=self._shared.limits.linger_s)

    async def _refuse(
        self,
        outcome: Outcome,
        code: str,
        detail: str,
        *,
        status: int,
        head: RequestHead | None = None,
        target: str = "",
    ) -> None:
        text = str(head.target) if head is not None else target
        self._record(outcome, code, detail, head, target=without_secrets(target))
        self._writer.write(refusal(status, code, detail, text))
        await self._drain_client()

    async def _drain_client(self) -> None:
        """Lets the client read the refusal: closing on bytes that it is still sending would reset it."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._shared.limits.linger_s):
                await self._writer.drain()
                self._writer.write_eof()
                while await self._client.read(CHUNK_BYTES):
                    pass

    def _record(
        self,
        outcome: Outcome,
        code: str,
        detail: str,
        head: RequestHead | None,
        *,
        target: str = "",
        started: float | None = None,
    ) -> None:
        now = self._shared.now()
        text = str(head.target) if head is not None else target
        self._counters.note(outcome, code, text, at=now)
        self._shared.audit.write(
            Row(
                at=now,
                outcome=outcome,
                door=self._door_id,
                code=code,
                method=head.method if head is not None else "",
                target=text,
                detail=detail,
                address=self._upstream.address if self._upstream is not None else "",
                bytes_up=self._up,
                bytes_down=self._down,
                duration_s=0.0 if started is None else round(now - started, 6),
                labels=self._labels(),
            )
        )
