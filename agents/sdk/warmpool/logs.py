"""Reading a build's log, as a flow: each step's text from its start, in the order of the steps."""

from __future__ import annotations

from warmpool.effects import Call, Emit, Flow, Sleep, params_of, path_of
from warmpool.requests import request
from warmpool.types import Build, BuildLogs, BuildStep

HOLD_S = 2.0
QUEUED_POLL_S = 0.5
_OVER = ("succeeded", "failed", "skipped")


def get_build(build: str, tenant: str | None = None) -> Call[Build]:
    return Call(method="GET", path=path_of("builds", build), answer=Build, params=params_of(tenant=tenant))


def follow_build(build: str, *, step: str | None = None, follow: bool = False, tenant: str | None = None) -> Flow[None]:
    """Emit LogChunks: what there is, or with ``follow`` until the build (or the ``step`` named) has ended."""
    offsets: dict[str, int] = {}
    read: set[str] = set()
    while True:
        # The state is read before the log: what was written before a step ended is then read for certain.
        now = yield from request(get_build(build, tenant))
        steps = [known for known in now.steps if step is None or known.name == step]
        running = False
        for known in steps:
            if known.name in read or known.state == "pending":
                continue
            running = known.state not in _OVER
            yield from _read_step(build, known, offsets, hold=follow and running, tenant=tenant)
            if running:
                break
            read.add(known.name)
        over = now.state in ("succeeded", "failed") or (step is not None and step in read)
        if not follow or (over and not running):
            return
        if not running:
            yield Sleep(QUEUED_POLL_S)


def _read_step(build: str, step: BuildStep, offsets: dict[str, int], *, hold: bool, tenant: str | None) -> Flow[None]:
    """Emit all that one step has written; ``hold``: wait a moment for more when there is nothing new."""
    while True:
        hold_s = HOLD_S if hold else 0.0
        call = Call(
            method="GET",
            path=path_of("builds", build, "logs"),
            answer=BuildLogs,
            params=params_of(step=step.name, after=offsets.get(step.name, 0), wait_s=hold_s or None, tenant=tenant),
            wait_s=hold_s,
        )
        page = yield from request(call)
        before = offsets.get(step.name, 0)
        for chunk in page.chunks:
            if chunk.text:
                yield Emit(chunk)
        offsets[step.name] = max(page.next.get(step.name, before), before)
        if offsets[step.name] == before:
            return
        hold = False
