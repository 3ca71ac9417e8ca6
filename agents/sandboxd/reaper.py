"""Reaping: every child that ends is collected here, the daemon's own and the orphans that pid 1 inherits.

Nothing else in the process waits for children, so there is no race over who collects a status. A
child that ends before its starter could ask for it is kept while a start is in flight.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a child ended. ``wait_status`` as by wait(2); usage is the child's and its collected children's."""

    pid: int
    wait_status: int
    cpu_s: float
    max_rss_bytes: int


class Reaper:
    """Bound to the running loop. ``on_orphan`` is called after orphans were collected."""

    def __init__(self) -> None:
        self._watched: dict[int, asyncio.Future[Exit]] = {}
        self._early: dict[int, Exit] = {}
        self._starting = 0
        self.on_orphan: Callable[[], None] = lambda: None

    def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._collect)
        self._collect()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Held around fork and ``watch``: statuses of unknown children are kept meanwhile."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            if not self._starting:
                self._early.clear()

    def watch(self, pid: int) -> asyncio.Future[Exit]:
        """A future of the child's end; call once per child, inside ``starting``."""
        future: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        ended = self._early.pop(pid, None)
        if ended is not None:
            future.set_result(ended)
        else:
            self._watched[pid] = future
        return future

    def _collect(self) -> None:
        orphans = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended = Exit(
                pid=pid,
                wait_status=status,
                cpu_s=usage.ru_utime + usage.ru_stime,
                max_rss_bytes=usage.ru_maxrss * 1024,
            )
            future = self._watched.pop(pid, None)
            if future is not None:
                if not future.done():
                    future.set_result(ended)
                continue
            orphans = True
            if self._starting:
                self._early[pid] = ended
        if orphans:
            self.on_orphan()
