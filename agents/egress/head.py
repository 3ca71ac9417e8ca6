"""The head of a proxy request: raw bytes → what was asked for, or a refusal. Pure.

Strict on purpose: whatever two parsers could read differently (bare LF, folded lines, two lengths, a length
beside a transfer coding) is refused here, on the raw bytes, before any other parser sees them. What is
passed on later is rendered anew from ``RequestHead``, never copied from the client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from agents.egress.names import BadName, Target, parse_authority

MAX_HEAD_BYTES = 16 * 1024
MAX_HEADERS = 100
HTTP_PORT = 80

Headers = tuple[tuple[bytes, bytes], ...]
Form = Literal["connect", "absolute"]
Body = Literal["none", "length", "chunked"]

_END = b"\r\n\r\n"
_FORBIDDEN = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\x00")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/(1\.[01])")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,17}")


class BadHead(Exception):
    """The request is refused as malformed. ``status`` is the HTTP status of the answer."""

    def __init__(self, code: str, detail: str, *, status: int = 400, target: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.target = target


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A well-formed request. ``path`` is the origin-form for an upstream (empty for CONNECT), ``headers``
    have lower-case names and keep their order, ``version`` is ``1.0`` or ``1.1``."""

    form: Form
    method: str
    target: Target
    path: bytes
    version: str
    headers: Headers
    body: Body

    def render(self) -> bytes:
        """The head again, in its one canonical form; parsing it gives an equal head."""
        target = str(self.target) if self.form == "connect" else f"http://{self.target}"
        lines = [f"{self.method} {target}".encode() + self.path + b" HTTP/" + self.version.encode()]
        lines += [name + b": " + value for name, value in self.headers]
        return b"\r\n".join(lines) + _END


def find_end(buffer: bytes | bytearray, start: int = 0) -> int | None:
    """Index just after the empty line that ends the head, None if it has not arrived.

    Looks from ``start`` on, so that a head arriving byte by byte is not scanned again each time. Raises
    BadHead as soon as a byte has arrived that no good head holds, or the head is too large.
    """
    start = max(0, start - len(_END))
    end = buffer.find(_END, start, MAX_HEAD_BYTES)
    limit = end + len(_END) if end >= 0 else min(len(buffer), MAX_HEAD_BYTES)
    bad = _FORBIDDEN.search(buffer, start, limit)
    if bad:
        code = "nul_byte" if bad.group() == b"\0" else "bare_line_end"
        raise BadHead(code, "The head holds a NUL or a line end that is not CR LF.")
    if end >= 0:
        return limit
    if len(buffer) >= MAX_HEAD_BYTES:
        raise BadHead("head_too_large", f"The head is larger than {MAX_HEAD_BYTES} bytes.", status=431)
    return None


def parse_head(raw: bytes) -> RequestHead:
    """The request in ``raw``, which ends with the empty line (see ``find_end``). Raises BadHead."""
    if find_end(raw) != len(raw):
        raise BadHead("incomplete_head", "The head does not end with an empty line.")
    request_line, *header_lines = raw[: -len(_END)].split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if not match:
        raise BadHead("bad_request_line", "The request line is not METHOD TARGET HTTP/1.1.")
    method, raw_target, version = match[1].decode(), match[2].decode(), match[3].decode()
    try:
        headers = _parse_headers(header_lines)
        form, target, path = _parse_target(method, raw_target)
        _check_host(headers, target, form=form, version=version)
        body = _body_framing(headers, form=form, version=version)
    except BadHead as error:
        error.target = raw_target
        raise
    return RequestHead(form=form, method=method, target=target, path=path, version=version, headers=headers, body=body)


def _parse_headers(lines: list[bytes]) -> Headers:
    if len(lines) > MAX_HEADERS:
        raise BadHead("too_many_headers", f"There are more than {MAX_HEADERS} header lines.", status=431)
    return tuple(_parse_header(line) for line in lines)


def _parse_header(line: bytes) -> tuple[bytes, bytes]:
    if line[:1] in (b" ", b"\t"):
        raise BadHead("folded_header", "A header line is folded.")
    name, colon, value = line.partition(b":")
    if colon and name != name.rstrip(b" \t"):
        raise BadHead("space_before_colon", "There is white space between a header's name and its colon.")
    if not colon or not _NAME.fullmatch(name):
        raise BadHead("bad_header", "A header line is not NAME: VALUE.")
    if not _VALUE.fullmatch(value):
        raise BadHead("bad_header", "A header value holds a control character.")
    return name.lower(), value.strip(b" \t")


def _parse_target(method: str, raw: str) -> tuple[Form, Target, bytes]:
    if method == "CONNECT":
        return "connect", _authority(raw, default_port=None), b""
    if method == "TRACE":
        raise BadHead("method_refused", "TRACE is not forwarded.")
    scheme, separator, rest = raw.partition("://")
    if raw.startswith("/") or not separator:
        raise BadHead("not_absolute", "This is a proxy: the target must be http://HOST/PATH, or use CONNECT.")
    if scheme.lower() != "http":
        raise BadHead("scheme_refused", "Only http:// is forwarded; for https use CONNECT.")
    if "#" in rest:
        raise BadHead("fragment", "A target may not carry a fragment.")
    cut = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    if "\\" in authority:
        raise BadHead("bad_host", "The host holds a backslash.")
    if not path.startswith("/"):
        path = "/" + path
    return "absolute", _authority(authority, default_port=HTTP_PORT), path.encode()


def _authority(text: str, *, default_port: int | None) -> Target:
    try:
        return parse_authority(text, default_port=default_port)
    except BadName as error:
        raise BadHead(error.code, error.detail) from error


def _check_host(headers: Headers, target: Target, *, form: Form, version: str) -> None:
    """One Host header that names the target; HTTP/1.0 may leave it out, as old tunnel clients do."""
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if not hosts and version == "1.0":
        return
    if len(hosts) != 1:
        raise BadHead("host_header", "There must be exactly one Host header.")
    # Clients differ in whether they repeat a tunnel's port in Host, so without one it is the target's.
    default_port = target.port if form == "connect" else HTTP_PORT
    if _authority(hosts[0], default_port=default_port) != target:
        raise BadHead("host_mismatch", "The Host header does not name the target.")


def _body_framing(headers: Headers, *, form: Form, version: str) -> Body:
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if codings and lengths:
        raise BadHead("ambiguous_length", "Content-Length and Transfer-Encoding stand together.")
    if len(set(lengths)) > 1:
        raise BadHead("ambiguous_length", "There are several different Content-Length headers.")
    if any(not _LENGTH.fullmatch(value) for value in lengths):
        raise BadHead("bad_length", "Content-Length is not a plain number.")
    if codings and (len(codings) > 1 or codings[0].lower() != b"chunked" or version == "1.0"):
        raise BadHead("bad_transfer_coding", "The only transfer coding is chunked, in HTTP/1.1.")
    if form == "connect" and (codings or any(value != b"0" for value in lengths)):
        raise BadHead("connect_body", "A CONNECT request may not have a body.")
    if codings:
        return "chunked"
    return "length" if lengths and lengths[0] != b"0" else "none"
