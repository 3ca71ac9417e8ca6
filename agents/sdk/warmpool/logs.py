"""Reading a build's log, as a flow: each step's text from its start, in the order of the steps."""

from __future__ import annotations

from warmpool.effects import Call, Emit, Flow, params_of, path_of
from warmpool.requests import request
from warmpool.types import BuildLogs

HOLD_S = 10.0


def follow_build(build: str, *, step: str | None = None, follow: bool = False, tenant: str | None = None) -> Flow[None]:
    """Emit LogChunks: what there is, or with ``follow`` until the build has ended and all was read."""
    offsets: dict[str, int] = {}
    hold_s = HOLD_S if follow else 0.0
    while True:
        after = [f"{name}:{offset}" for name, offset in offsets.items()]
        call = Call(
            method="GET",
            path=path_of("builds", build, "logs"),
            answer=BuildLogs,
            params=params_of(step=step, after=after or None, wait_s=hold_s or None, tenant=tenant),
            wait_s=hold_s,
        )
        page = yield from request(call)
        for chunk in page.chunks:
            yield Emit(chunk)
        moved = any(page.next.get(name, 0) > offsets.get(name, 0) for name in page.next)
        offsets.update(page.next)
        if page.complete or not (follow or moved):
            return
