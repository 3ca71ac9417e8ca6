"""One absolute-form request: sent to its upstream in canonical form, and the answer brought back.

Both messages are taken apart and put together again by h11, so that framing is this gateway's own on either
side: nothing behind a request's body can reach the upstream as a second request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11

from agents.egress.dial import Upstream
from agents.egress.head import HTTP_PORT, Headers, RequestHead
from agents.egress.limits import CHUNK_BYTES
from agents.egress.relay import Inbound, reset

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_MAX_ANSWER_HEAD_BYTES = 64 * 1024


class ExchangeError(Exception):
    """The exchange cannot be completed. ``code``: ``bad_answer`` (the upstream's answer is not valid or ended
    early) or ``bad_body`` (the client's body is). ``started``: part of an answer was passed on."""

    def __init__(self, code: str, detail: str, *, status: int, started: bool) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.started = started


def upstream_request(head: RequestHead, proxy_headers: Headers | None) -> h11.Request:
    """The request as the upstream gets it: hop-by-hop and proxy headers gone, Host first and canonical."""
    port = head.target.port
    host = head.target.authority_host if port == HTTP_PORT else str(head.target)
    headers = [(b"Host", host.encode())]
    headers += [(name, value) for name, value in end_to_end(head.headers) if name != b"host"]
    if head.body == "chunked":
        headers.append((b"Transfer-Encoding", b"chunked"))
    headers.append((b"Connection", b"close"))
    path = head.path
    if proxy_headers is not None:
        headers += proxy_headers
        path = f"http://{head.target}".encode() + path
    return h11.Request(method=head.method, target=path, headers=headers)


def end_to_end(headers: Headers) -> Headers:
    """Without hop-by-hop headers, those that Connection names, and repetitions of Content-Length."""
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    # A client must not be able to have the framing or the target removed by naming it in Connection.
    drop = _HOP_BY_HOP | (named - {b"host", b"content-length"})
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name in drop or (name == b"content-length" and any(n == name for n, _ in kept)):
            continue
        kept.append((name, value))
    return tuple(kept)


class Exchange:
    """Carries one request and its answer. ``on_up``, ``on_down`` get the number of bytes written."""

    def __init__(
        self,
        head: RequestHead,
        *,
        client: Inbound,
        client_writer: asyncio.StreamWriter,
        upstream: Upstream,
        on_up: Callable[[int], None],
        on_down: Callable[[int], None],
    ) -> None:
        self._head = head
        self._client = client
        self._client_writer = client_writer
        self._upstream = upstream
        self._on_up = on_up
        self._on_down = on_down
        self._server = h11.Connection(h11.SERVER)
        self._outbound = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_ANSWER_HEAD_BYTES)
        self._started = False
        self._body_error = ""

    async def run(self) -> bool:
        """True if the client may send another request on its connection. Raises ExchangeError, OSError."""
        self._server.receive_data(self._head.render())
        self._server.next_event()
        await self._send_up(upstream_request(self._head, self._upstream.proxy_headers))
        upload = asyncio.create_task(self._upload())
        try:
            await self._download()
        except h11.RemoteProtocolError as error:
            raise self._failure(f"The answer is not valid HTTP: {error}.") from error
        finally:
            upload.cancel()
            await asyncio.wait([upload])
        if self._server.our_state is not h11.DONE or self._server.their_state is not h11.DONE:
            return False
        self._client.unread(self._server.trailing_data[0])
        return True

    async def _upload(self) -> None:
        try:
            while True:
                event = self._server.next_event()
                if event is h11.NEED_DATA:
                    self._server.receive_data(await self._read_body())
                elif isinstance(event, h11.Data):
                    await self._send_up(h11.Data(data=event.data))
                elif isinstance(event, h11.EndOfMessage):
                    # Trailers are dropped: nobody has checked them.
                    await self._send_up(h11.EndOfMessage())
                    return
                else:
                    return
        except h11.RemoteProtocolError as error:
            # The body is malformed or ended early: the upstream must not take it for complete.
            self._body_error = f"The body is not valid: {error}."
            reset(self._upstream.writer)
        except OSError:
            # The upstream reads no more; it may have answered, which the other direction finds out.
            return

    async def _download(self) -> None:
        while True:
            event = self._outbound.next_event()
            if event is h11.NEED_DATA:
                self._outbound.receive_data(await self._read_answer())
            elif isinstance(event, h11.InformationalResponse):
                if event.status_code == 100:
                    await self._send_down(h11.InformationalResponse(status_code=100, headers=[]))
            elif isinstance(event, h11.Response):
                self._started = True
                await self._send_down(_answer(event))
            elif isinstance(event, h11.Data):
                await self._send_down(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._send_down(h11.EndOfMessage())
                return
            else:
                raise self._failure("The upstream closed the connection without an answer.")

    def _failure(self, detail: str) -> ExchangeError:
        if self._body_error:
            return ExchangeError("bad_body", self._body_error, status=400, started=self._started)
        return ExchangeError("bad_answer", detail, status=502, started=self._started)

    async def _read_body(self) -> bytes:
        try:
            return await self._client.read(CHUNK_BYTES)
        except OSError:
            return b""

    async def _read_answer(self) -> bytes:
        try:
            return await self._upstream.reader.read(CHUNK_BYTES)
        except OSError as error:
            raise self._failure("The upstream reset the connection.") from error

    async def _send_up(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        data = self._outbound.send(event) or b""
        self._on_up(len(data))
        self._upstream.writer.write(data)
        await self._upstream.writer.drain()

    async def _send_down(self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._server.send(event) or b""
        self._on_down(len(data))
        self._client_writer.write(data)
        await self._client_writer.drain()


def _answer(event: h11.Response) -> h11.Response:
    headers = end_to_end(tuple((bytes(name), bytes(value)) for name, value in event.headers))
    if any(name == b"transfer-encoding" for name, _ in event.headers):
        # With a transfer coding the length does not count, and passed on it would contradict the framing.
        headers = tuple((name, value) for name, value in headers if name != b"content-length")
    return h11.Response(status_code=event.status_code, reason=event.reason, headers=list(headers))
