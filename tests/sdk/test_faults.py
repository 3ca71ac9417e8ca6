"""What the client makes of servers and networks that misbehave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.sdk.contract import Served
from warmpool import (
    ConnectionException,
    InvalidArgumentException,
    Sandbox,
    SandboxException,
    StreamBroken,
    TimeoutException,
    UnavailableException,
    Warmpool,
)


def test_an_answer_that_is_lost_on_its_way_makes_no_second_session(served: Served) -> None:
    served.faults.plan("POST", "/v1/sessions", cut_after=5)
    with Sandbox.create("demo") as sb:
        assert list(served.contract.sessions) == [sb.id]
    assert served.calls("POST", "/v1/sessions") == 2


def test_a_start_whose_answer_is_lost_starts_the_command_once(
    sandbox: Sandbox, served: Served, tmp_path: object
) -> None:
    served.faults.plan("POST", "/exec", times=2, cut_after=0)
    assert sandbox.commands.run(f"echo x >> {tmp_path}/n; cat {tmp_path}/n").stdout == "x\n"
    assert served.contract.started == 1


def test_a_service_that_is_away_for_a_moment_is_asked_again(served: Served) -> None:
    served.faults.plan("POST", "/v1/sessions", times=2, status=503, headers={"Retry-After": "0"})
    with Sandbox.create("demo"):
        assert served.calls("POST", "/v1/sessions") == 3


def test_retry_after_is_waited_for(served: Served) -> None:
    served.faults.plan("GET", "/v1/whoami", status=503, headers={"Retry-After": "1"})
    began = time.monotonic()
    with Warmpool() as api:
        api.whoami()
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("after", ["1e9", "nan", "-5", "soon", "9" * 400])
def test_an_absurd_retry_after_neither_hangs_nor_breaks_the_client(served: Served, after: str) -> None:
    served.faults.plan("GET", "/v1/whoami", times=100, status=503, headers={"Retry-After": after})
    with Warmpool() as api:
        began = time.monotonic()
        if after in ("1e9", "9" * 400):
            with pytest.raises(UnavailableException):
                api.whoami()
        else:
            served.faults.planned = served.faults.planned[:1]
            assert api.whoami().tenant == "acme"
        assert time.monotonic() - began < 10


def test_errors_that_will_not_pass_are_not_tried_again(served: Served) -> None:
    served.faults.plan("GET", "/v1/whoami", times=10, status=500, code="internal_error")
    with Warmpool() as api, pytest.raises(SandboxException) as caught:
        api.whoami()
    assert (caught.value.code, caught.value.status) == ("internal_error", 500)
    assert served.calls("GET", "/v1/whoami") == 1


def test_input_that_may_have_been_read_is_never_sent_again(sandbox: Sandbox, served: Served) -> None:
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    served.faults.plan("POST", "/stdin", status=503)
    with pytest.raises(UnavailableException):
        handle.send_stdin("once\n")
    assert served.calls("POST", "/stdin") == 1
    handle.close_stdin()
    assert handle.wait().stdout == ""


def test_a_key_is_never_made_twice(served: Served) -> None:
    served.faults.plan("POST", "/v1/keys", cut_after=3)
    with Warmpool() as api:
        with pytest.raises(ConnectionException, match="may or may not"):
            api.keys.create()
        assert len(api.keys.list()) == 1


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"", b"[1]", b'{"tenant": 7}', b"\xff\xfe"])
def test_an_answer_of_some_other_program_is_named_as_such(served: Served, body: bytes) -> None:
    served.faults.plan("GET", "/v1/whoami", body=body)
    with Warmpool() as api, pytest.raises(SandboxException, match="not what Warmpool's API sends") as caught:
        api.whoami()
    assert caught.value.code == "unexpected_answer"


def test_a_server_that_never_answers_is_a_timeout_that_names_the_call(served: Served) -> None:
    served.faults.plan("GET", "/v1/whoami", hang=True)
    with Warmpool(request_timeout=0.3) as api, pytest.raises(TimeoutException, match="GET /v1/whoami"):
        api.whoami()


def test_nobody_listening_is_said_with_the_way_out(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with Warmpool(api_url=f"http://127.0.0.1:{port}", patient=False) as api:
        with pytest.raises(ConnectionException, match="warmpool up"):
            api.whoami()
        assert api.readiness().ready is False


def test_an_api_that_is_just_starting_is_waited_for(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    answer = b'{"tenant": "acme", "role": "ops"}'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(answer)

    def start_late() -> None:
        time.sleep(0.5)
        with socket.create_server(("127.0.0.1", port)) as late, late.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(head + answer)

    thread = threading.Thread(target=start_late, daemon=True)
    thread.start()
    with Warmpool(api_url=f"http://127.0.0.1:{port}") as api:
        assert api.whoami().tenant == "acme"
    thread.join(10)


@pytest.mark.parametrize("cuts", [[0], [10], [150, 151, 152], [400]])
def test_output_over_broken_connections_is_whole(sandbox: Sandbox, served: Served, cuts: list[int]) -> None:
    for cut in cuts:
        served.faults.plan("GET", "/stream", cut_after=cut)
    result = sandbox.commands.run("for i in 1 2 3 4 5; do echo line $i; sleep 0.05; done")
    assert result.stdout == "".join(f"line {i}\n" for i in range(1, 6))
    assert served.contract.started == 1


def test_output_that_can_not_be_read_is_an_error_and_never_a_short_result(sandbox: Sandbox, served: Served) -> None:
    served.faults.plan("GET", "/stream", times=100, cut_after=0)
    with pytest.raises(StreamBroken, match="could not be read beyond event 0"):
        sandbox.commands.run("echo hi")


def test_a_stream_of_something_else_is_an_error(sandbox: Sandbox, served: Served) -> None:
    served.faults.plan("GET", "/stream", times=100, body=b"<html>\n" * 10)
    with pytest.raises(StreamBroken, match="not an event"):
        sandbox.commands.run("echo hi")


def test_a_file_cut_short_is_an_error_and_never_a_part(sandbox: Sandbox, served: Served) -> None:
    sandbox.files.write("big", b"x" * 100_000)
    served.faults.plan("GET", "/files", cut_after=50_000)
    with pytest.raises(StreamBroken):
        list(sandbox.files.read("big", format="stream"))
    served.faults.plan("GET", "/files", cut_after=50_000)
    assert len(sandbox.files.read("big")) == 100_000, "read as a whole, it is read again"


@contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server of one's own making: ``serve`` gets each connection after a request came."""
    listener = socket.create_server(("127.0.0.1", 0))

    def loop() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                with suppress(OSError):
                    serve(connection)

    threading.Thread(target=loop, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_an_answer_without_end_is_refused(served: Served) -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            connection.sendall(b"[" * 1_000_000)

    with raw_server(endless) as url, Warmpool(api_url=url) as api, pytest.raises(SandboxException, match="has no end"):
        api.whoami()


def test_something_that_is_not_http_is_a_connection_error(served: Served) -> None:
    serve = raw_server(lambda c: c.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"))
    with serve as url, Warmpool(api_url=url) as api, pytest.raises(ConnectionException):
        api.keys.create()


def test_a_redirect_is_not_followed_so_that_the_key_stays_here(served: Served) -> None:
    answer = b"HTTP/1.1 302 Found\r\nlocation: http://192.0.2.1/\r\ncontent-length: 0\r\n\r\n"
    serve = raw_server(lambda c: c.sendall(answer))
    with serve as url, Warmpool(api_url=url) as api, pytest.raises(SandboxException, match="status 302"):
        api.whoami()


def test_a_proxy_of_the_environment_is_not_asked_for_this_host(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with Warmpool() as api:
        assert api.whoami().tenant == "acme"


@pytest.mark.parametrize("key", ["with space", "line\nbreak", "ümlaut"])
def test_a_key_that_can_be_none_is_refused_before_it_is_sent(served: Served, key: str) -> None:
    with pytest.raises(InvalidArgumentException, match="no key has"):
        Warmpool(api_key=key)


@pytest.mark.parametrize("odd", ["", ".", ".."])
def test_an_id_that_would_lead_elsewhere_is_refused(served: Served, odd: str) -> None:
    with Warmpool() as api, pytest.raises(InvalidArgumentException):
        api.sessions.get(odd)
    assert served.faults.seen == []


def test_an_id_with_odd_characters_stays_one_segment_of_the_path(served: Served) -> None:
    with Warmpool() as api, pytest.raises(SandboxException):
        api.pools.get("a/../../keys?x=1#y")
    assert served.faults.seen[-1][:2] == ("GET", "/v1/pools/a/../../keys?x=1#y")
