"""What both drivers share: the settings of a client, a call as arguments of httpx, and its errors."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from warmpool.config import Config
from warmpool.effects import Broken, Call, Silent
from warmpool.errors import InvalidArgumentException, SandboxException
from warmpool.version import VERSION

MAX_ANSWER_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 64 * 1024


def client_settings(config: Config) -> dict[str, Any]:
    headers = {"User-Agent": f"warmpool-sdk/{VERSION}"}
    if config.api_key:
        if not config.api_key.isascii() or not config.api_key.isprintable() or " " in config.api_key:
            raise InvalidArgumentException("The API key has characters that no key has.", code="invalid_key")
        headers["Authorization"] = f"Bearer {config.api_key}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30.0)
    return {"base_url": config.url, "headers": headers, "limits": limits, "trust_env": not config.loopback}


def request_arguments(call: Call[Any], config: Config, idle_s: float | None = None) -> dict[str, Any]:
    headers = {"Accept": call.accept, **call.headers}
    content: Any = call.content
    if call.body is not None:
        content = msgspec.json.encode(call.body)
        headers["Content-Type"] = "application/json"
    elif content is not None:
        headers.setdefault("Content-Type", "application/octet-stream")
    limit_s = config.request_timeout_s if call.timeout_s is None else call.timeout_s
    read_s = call.wait_s + limit_s if idle_s is None else idle_s
    timeout = httpx.Timeout(limit_s, connect=min(10.0, limit_s), read=read_s)
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.params) or None,
        "headers": headers,
        "content": content,
        "timeout": timeout,
    }


def reason_of(error: Exception, config: Config) -> Exception:
    """An httpx error as what flows understand."""
    detail = str(error) or type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)):
        return Broken(detail, sent=False, final=not config.patient)
    if isinstance(error, (httpx.ReadTimeout, httpx.WriteTimeout)):
        return Silent(detail)
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return InvalidArgumentException(f"The request can't be made: {detail}", code="invalid_url")
    return Broken(detail, sent=True)


FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)


def check_open(client: httpx.Client | httpx.AsyncClient) -> None:
    if client.is_closed:
        raise SandboxException(
            "This client was closed.", code="client_closed", hint="Connect again, or use it inside its with block."
        )


def check_size(call: Call[Any], size: int) -> None:
    if size > MAX_ANSWER_BYTES and call.answer is not bytes:
        raise SandboxException(f"The answer to {call.what} has no end.", code="unexpected_answer")
