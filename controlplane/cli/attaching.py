"""Attaching with progress, and ending what was attached."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from controlplane.cli.operation import Cli
from controlplane.cli.output import clean, note, span
from controlplane.cli.sizes import parse_size
from warmpool import Sandbox, Session


@contextmanager
def attached(cli: Cli, *where: str | None, keep: bool = False, quiet: bool = False, **how: Any) -> Iterator[Sandbox]:
    """A session for the time of the block, ended after it unless ``keep``; see ``attach``."""
    with _terminated_as_interrupt():
        sandbox = attach(cli, *where, quiet=quiet, **how)
        try:
            yield sandbox
        finally:
            if keep:
                note(f"session {sandbox.id} is kept; end it with: warmpool session rm {sandbox.id}")
            else:
                cli.api.sessions.end(sandbox.id)


def attach(
    cli: Cli,
    pool: str | None,
    template: str | None,
    ref: str | None,
    *,
    resources: dict[str, Any] | None = None,
    env: list[str] | None = None,
    label: list[str] | None = None,
    wait: float = 120.0,
    ttl: float | None = None,
    quiet: bool = False,
) -> Sandbox:
    """Attach, and say on standard error what is waited for and how it went."""
    progress = _Progress(quiet)
    try:
        sandbox = cli.api.attach(
            pool,
            template=template,
            ref=ref,
            resources=resources,
            envs=pairs(env, "--env"),
            metadata=pairs(label, "--label"),
            wait=wait,
            timeout=ttl,
            on_progress=progress,
        )
    finally:
        progress.end()
    if not quiet:
        took = sandbox.timings_ms.get("total")
        after = f" in {span(took / 1000)}" if took is not None and sandbox.start == "warm" else ""
        note(f"session {sandbox.id}: {clean(sandbox.start)} start{after} ({clean(sandbox.start_reason)})")
    return sandbox


def pairs(items: list[str] | None, option: str) -> dict[str, str]:
    """``KEY=VALUE`` items as a dictionary."""
    found = {}
    for item in items or []:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE", param_hint=option)
        found[name] = value
    return found


def resources_of(memory: str | None, cpus: float | None) -> dict[str, Any] | None:
    """Resources to ask for, None when none were named."""
    wanted: dict[str, Any] = {}
    if memory is not None:
        try:
            wanted["memory_bytes"] = parse_size(memory)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--memory") from error
    if cpus is not None:
        wanted["cpu_cores"] = cpus
    return wanted or None


class _Progress:
    """What a waiting session waits for: one moving line on a terminal, else a line for each change."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._said = ""
        self._status: Any = None

    def __call__(self, session: Session) -> None:
        if self._quiet:
            return
        place = session.queue
        parts = [f"waiting for a sandbox of {clean(session.pool)}"]
        if place is not None:
            parts += [f"number {place.position + 1} in the queue"] if place.position is not None else []
            parts += [f"{place.pool_building} on their way"] if place.pool_building else []
            parts += [clean(place.step)] if place.step else []
        text = ", ".join(parts)
        if sys.stderr.isatty():
            self._show(text)
        elif text != self._said:
            note(text)
        self._said = text

    def _show(self, text: str) -> None:
        from rich.console import Console
        from rich.markup import escape

        if self._status is None:
            self._status = Console(stderr=True).status(escape(text))
            self._status.start()
        self._status.update(escape(text))

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does, so that the session is ended then, too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # Handlers can be set by the main thread only; a program that calls this from another has its own.
    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
