"""A TCP port on loopback that leads to a Unix socket, as the forwarder inside a sandbox does."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def forwarding_to(path: Path) -> Iterator[str]:
    """Gives the proxy URL ``http://127.0.0.1:PORT``; runs in threads, so that blocking clients can be used."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_accept, args=(listener, path), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _accept(listener: socket.socket, path: Path) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(client, path), daemon=True).start()


def _serve(client: socket.socket, path: Path) -> None:
    with client, socket.socket(socket.AF_UNIX) as door, contextlib.suppress(OSError):
        door.connect(str(path))
        back = threading.Thread(target=_copy, args=(door, client), daemon=True)
        back.start()
        _copy(client, door)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
