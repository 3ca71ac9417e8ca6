#!/usr/bin/env python3
"""A small git server for tests and demonstrations: smart HTTP, read-only, on loopback.

Serves every repository below ROOT (bare or not) through ``git http-backend``. Needs git and the standard
library only. As a program it prints its URL and serves until it is stopped; tests use ``GitServer``:

    with GitServer(root) as server:
        subprocess.run(["git", "clone", f"{server.url}/name.git"], check=True)
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote

_CHUNK_BYTES = 64 * 1024
_MAX_BODY_BYTES = 64 * 1024 * 1024
_READ_ONLY = b"This server is read-only.\n"


class GitServer:
    """Serves ``root`` in threads between ``start`` and ``stop``; ``port`` 0 takes a free one."""

    def __init__(self, root: Path, *, port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.root = root.resolve()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> GitServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    root: Path


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._serve(body=b"")

    def do_POST(self) -> None:
        try:
            body = b"".join(self._read_body())
        except ValueError as error:
            self.close_connection = True
            self._reply(400, str(error).encode() + b"\n")
            return
        self._serve(body)

    def log_message(self, format: str, *args: object) -> None:
        if os.environ.get("GITSERVER_LOG"):
            super().log_message(format, *args)

    def _serve(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        if "git-receive-pack" in path or "service=git-receive-pack" in query:
            self._reply(403, _READ_ONLY)
            return
        done = subprocess.run(
            ["git", "http-backend"], input=body, capture_output=True, env=self._cgi_environment(path, query, len(body))
        )
        head, separator, content = done.stdout.partition(b"\r\n\r\n")
        if not separator:
            self._reply(500, b"git http-backend gave no answer: " + done.stderr[-500:] + b"\n")
            return
        headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n"))
        status = int(headers.pop("Status", "200").split(" ", 1)[0])
        self._reply(status, content, headers)

    def _cgi_environment(self, path: str, query: str, length: int) -> dict[str, str]:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": self.client_address[0],
        }
        # The repositories may belong to another user than the one who serves them for reading.
        settings = {"safe.directory": "*", "uploadpack.allowFilter": "true", "uploadpack.allowAnySHA1InWant": "true"}
        environment["GIT_CONFIG_COUNT"] = str(len(settings))
        for index, (key, value) in enumerate(settings.items()):
            environment[f"GIT_CONFIG_KEY_{index}"] = key
            environment[f"GIT_CONFIG_VALUE_{index}"] = value
        return environment

    def _read_body(self) -> Iterator[bytes]:
        """The body by either framing; git sends large ones in chunks. Raises ValueError."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            yield from self._read_chunks()
            return
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= _MAX_BODY_BYTES:
            raise ValueError("the body is too large")
        yield _read_exactly(self.rfile, length)

    def _read_chunks(self) -> Iterator[bytes]:
        total = 0
        while size := int(self.rfile.readline(100).split(b";")[0].strip(), 16):
            total += size
            if not 0 <= total <= _MAX_BODY_BYTES:
                raise ValueError("the body is too large")
            yield _read_exactly(self.rfile, size)
            self.rfile.readline(100)
        while self.rfile.readline(_CHUNK_BYTES).strip():
            pass

    def _reply(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {"Content-Type": "text/plain"}).items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)


def _read_exactly(file: BufferedIOBase, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ValueError("the body ended early")
    return data


def main() -> int:
    parser = argparse.ArgumentParser(description="A read-only git server on loopback.")
    parser.add_argument("--root", type=Path, required=True, help="folder that holds the repositories")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--ready-file", type=Path, help="file to write the URL to once it serves")
    options = parser.parse_args()
    if not options.root.is_dir():
        print(f"gitserver: {options.root} is not a folder", file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with GitServer(options.root, port=options.port) as server:
        print(server.url, flush=True)
        if options.ready_file:
            new = options.ready_file.with_name(options.ready_file.name + ".new")
            new.write_text(server.url + "\n")
            new.replace(options.ready_file)
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
