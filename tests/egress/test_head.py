from __future__ import annotations

import re

import h11
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from agents.egress.head import MAX_HEAD_BYTES, BadHead, find_end, parse_head


def code_of(raw: bytes) -> str:
    with pytest.raises(BadHead) as caught:
        parse_head(raw)
    return caught.value.code


def test_an_absolute_form_request_is_read_whole() -> None:
    head = parse_head(b"GET http://A.Example.:8080/x?y HTTP/1.1\r\nHost: a.example:8080\r\nX-A:  b \r\n\r\n")
    assert (head.form, head.method, str(head.target)) == ("absolute", "GET", "a.example:8080")
    assert (head.path, head.body, head.headers[1]) == (b"/x?y", "none", (b"x-a", b"b"))


@pytest.mark.parametrize(("target", "path"), [("", b"/"), ("?a=b", b"/?a=b"), ("/%2e%2e/a@b", b"/%2e%2e/a@b")])
def test_the_path_of_an_absolute_form_is_its_origin_form(target: str, path: bytes) -> None:
    assert parse_head(f"GET http://a.example{target} HTTP/1.1\r\nHost: a.example\r\n\r\n".encode()).path == path


def test_a_tunnel_of_an_old_client_needs_no_host_header() -> None:
    head = parse_head(b"CONNECT github.com:443 HTTP/1.0\r\n\r\n")
    assert (head.form, str(head.target)) == ("connect", "github.com:443")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"GET http://a/ HTTP/1.1\nHost: a\r\n\r\n", "bare_line_end"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", "bare_line_end"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", "bare_line_end"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", "nul_byte"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", "folded_header"),
        (b"GET http://a/ HTTP/1.1\r\n Host: a\r\n\r\n", "folded_header"),
        (b"GET http://a/ HTTP/1.1\r\nHost : a\r\n\r\n", "space_before_colon"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n", "space_before_colon"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", "bad_header"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nX: \x0b\r\n\r\n", "bad_header"),
        (b"GET http://a/ HTTP/1.1\r\n\r\n", "host_header"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "host_header"),
        (b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", "host_mismatch"),
        (b"GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n", "host_mismatch"),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: b:443\r\n\r\n", "host_mismatch"),
        (b"GET http://a/ HTTP/2.0\r\nHost: a\r\n\r\n", "bad_request_line"),
        (b"GET  http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "bad_request_line"),
        (b"GET http://a/\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", "bad_request_line"),
        (b"\r\nGET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "bad_request_line"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "not_absolute"),
        (b"GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "scheme_refused"),
        (b"TRACE http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "method_refused"),
        (b"GET http://github.com@evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", "userinfo"),
        (b"GET http://evil.com#@github.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", "fragment"),
        (b"GET http://evil.com\\@a/ HTTP/1.1\r\nHost: a\r\n\r\n", "bad_host"),
        (b"CONNECT a:443/x HTTP/1.1\r\nHost: a\r\n\r\n", "bad_port"),
        (b"CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", "bad_port"),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n", "connect_body"),
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(raw: bytes, code: str) -> None:
    assert code_of(raw) == code


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", "ambiguous_length"),
        ("Content-Length: 5\r\nContent-Length: 6", "ambiguous_length"),
        ("Content-Length: 5, 5", "bad_length"),
        ("Content-Length: +5", "bad_length"),
        ("Content-Length: 05", "bad_length"),
        ("Content-Length: 0x5", "bad_length"),
        ("Transfer-Encoding: gzip, chunked", "bad_transfer_coding"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "bad_transfer_coding"),
        ("Transfer-Encoding: identity", "bad_transfer_coding"),
    ],
)
def test_an_ambiguous_body_length_is_refused(headers: str, code: str) -> None:
    assert code_of(f"POST http://a/ HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n".encode()) == code


def test_a_bad_byte_is_refused_before_the_head_is_complete() -> None:
    with pytest.raises(BadHead, match="line end"):
        find_end(b"GET http://a/ HTTP/1.1\nHost: a\n\n")


def test_a_head_that_never_ends_is_refused_at_the_cap() -> None:
    assert find_end(b"a" * (MAX_HEAD_BYTES - 1)) is None
    with pytest.raises(BadHead) as caught:
        find_end(b"a" * MAX_HEAD_BYTES)
    assert caught.value.status == 431


def test_the_cap_counts_the_empty_line_and_not_what_follows_it() -> None:
    fill = MAX_HEAD_BYTES - len(b"X: \r\n\r\n")
    assert find_end(b"X: " + b"a" * fill + b"\r\n\r\n" + b"body") == MAX_HEAD_BYTES
    with pytest.raises(BadHead):
        find_end(b"X: " + b"a" * (fill + 1) + b"\r\n\r\n")


# Pieces that good and bad heads are made of, so that chance finds the seams between them.
_PIECES = st.sampled_from(
    [
        b"GET ",
        b"POST ",
        b"CONNECT ",
        b"http://",
        b"a.example",
        b"b",
        b":443",
        b":80",
        b"/",
        b"?",
        b"#",
        b"@",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n ",
        b"\x00",
        b" ",
        b"\t",
        b": ",
        b":",
        b" :",
        b"Host: a.example",
        b"Host",
        b"Content-Length: 5",
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"X-A: b",
        b"Connection: close",
        b"\xff",
        b"5",
        b",",
        b"Transfer-Encoding: gzip",
        b"\x0b",
        b"\\",
    ]
)
_HEADER = st.sampled_from(
    [
        b"Host: a.example",
        b"Host: a.example:80",
        b"host:A.EXAMPLE",
        b"Content-Length: 5",
        b"Content-Length: 6",
        b"Transfer-Encoding: Chunked",
        b"X-A:  b\t",
        b"X-B:",
        b" folded",
        b"X : y",
        b"X-C: \xff",
        b"Expect: 100-continue",
    ]
)
_LINE = st.sampled_from(
    [
        b"GET http://a.example/ HTTP/1.1",
        b"POST http://a.example:80/p?q HTTP/1.1",
        b"CONNECT a.example:80 HTTP/1.1",
        b"PUT HTTP://A.example. HTTP/1.0",
        b"OPTIONS http://a.example HTTP/1.1",
        b"GET http://[::1]:80/ HTTP/1.1",
    ]
)
_LIKELY = st.builds(
    lambda line, headers: b"\r\n".join([line, *headers]) + b"\r\n\r\n",
    _LINE,
    st.lists(_HEADER, max_size=5).map(lambda rest: [b"Host: a.example", *rest]) | st.lists(_HEADER, max_size=5),
)
_MUTATED = st.builds(
    lambda raw, at, cut, piece: raw[: at % len(raw)] + piece + raw[at % len(raw) + cut :],
    _LIKELY,
    st.integers(0, 500),
    st.integers(0, 3),
    _PIECES,
)
_HEADS = _LIKELY | _MUTATED | st.lists(_PIECES, max_size=20).map(b"".join) | st.binary(max_size=200)


@given(_HEADS)
def test_what_is_accepted_means_the_same_to_h11_and_to_a_strict_reading(raw: bytes) -> None:
    try:
        head = parse_head(raw)
    except BadHead:
        return
    assert raw.count(b"\n") == raw.count(b"\r") == raw.count(b"\r\n")
    line, *rest = raw[:-4].split(b"\r\n")
    strict = [re.fullmatch(rb"([!-9;-~]+):[ \t]*(.*?)[ \t]*", header, re.DOTALL) for header in rest]
    assert [(m[1].lower(), m[2]) for m in strict if m] == list(head.headers) and all(strict)
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(raw)
    request = parser.next_event()
    assert isinstance(request, h11.Request)
    assert [request.method, request.target] == line.split(b" ")[:2]
    assert {n: v.lower() for n, v in request.headers} == {n: v.lower() for n, v in head.headers}
    has_body = not isinstance(parser.next_event(), h11.EndOfMessage)
    assert has_body == (head.body != "none")


@given(_HEADS)
def test_a_rendered_head_parses_to_an_equal_head(raw: bytes) -> None:
    try:
        head = parse_head(raw)
    except BadHead:
        return
    assert parse_head(head.render()) == head


@given(_HEADS, st.integers(1, 7))
def test_a_head_that_arrives_in_pieces_ends_where_it_ends_as_a_whole(raw: bytes, step: int) -> None:
    def end_of(pieces: list[int]) -> int | str | None:
        scanned = 0
        try:
            for size in pieces:
                if (end := find_end(raw[:size], scanned)) is not None:
                    return end
                scanned = size
        except BadHead as error:
            return error.code
        return None

    assert end_of([*range(step, len(raw), step), len(raw)]) == end_of([len(raw)])


@pytest.mark.parametrize(("form", "body"), [("connect", "none"), ("absolute", "length"), ("absolute", "chunked")])
def test_the_heads_tried_above_include_accepted_ones_of_every_form(form: str, body: str) -> None:
    def is_wanted(raw: bytes) -> bool:
        try:
            head = parse_head(raw)
        except BadHead:
            return False
        return (head.form, head.body) == (form, body)

    find(_HEADS, is_wanted, settings=settings(max_examples=5000, database=None))
