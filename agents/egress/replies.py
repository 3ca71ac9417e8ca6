"""The gateway's own answers to a client: short JSON, never a byte of an upstream's."""

from __future__ import annotations

import http
import re

import msgspec

MAX_TARGET_CHARS = 300


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a refusal: machine-readable ``code``, ``detail`` for people, ``target`` as asked for."""

    code: str
    detail: str
    target: str


def refusal(status: int, code: str, detail: str, target: str, *, retry_after_s: int | None = None) -> bytes:
    """A whole HTTP/1.1 answer after which the connection closes."""
    body = msgspec.json.encode(Answer(code=code, detail=detail, target=shorten(target))) + b"\n"
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if retry_after_s is not None:
        lines.append(f"Retry-After: {retry_after_s}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def shorten(target: str) -> str:
    return target if len(target) <= MAX_TARGET_CHARS else target[:MAX_TARGET_CHARS] + "…"


def without_secrets(target: str) -> str:
    """What of a malformed target may be recorded: no path, no query, no user name or password."""
    if "@" in target:
        return shorten("***@" + re.split(r"[/?#]", target.rpartition("@")[2])[0])
    scheme, separator, rest = target.partition("://")
    authority = re.split(r"[/?#]", rest if separator else target)[0]
    return shorten(scheme + separator + authority) if separator else shorten(authority)
