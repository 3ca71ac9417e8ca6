"""Every state transition of the project, as tables.

``SANDBOX[(state, event)]`` is the next state; a pair that is not in the table is illegal: ``step`` raises
Conflict and changes nothing. The store's scripts get these tables as data, so that there is one truth;
the diagram in docs/ is generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.errors import Conflict

Table = Mapping[tuple[str, str], str]

SANDBOX: Table = {
    ("building", "ready"): "ready",
    ("building", "assign"): "claimed",
    ("building", "fail"): "failed",
    ("building", "drain"): "draining",
    ("ready", "claim"): "claimed",
    ("ready", "drain"): "draining",
    ("ready", "fail"): "failed",
    ("claimed", "release"): "draining",
    ("claimed", "fail"): "failed",
    ("claimed", "pause"): "paused",
    ("paused", "resume"): "claimed",
    ("paused", "release"): "draining",
    ("paused", "fail"): "failed",
    ("failed", "drain"): "draining",
    ("draining", "gone"): "gone",
}

SESSION: Table = {
    ("new", "claim"): "binding",
    ("new", "wait"): "waiting",
    ("waiting", "assign"): "binding",
    ("waiting", "end"): "ended",
    ("binding", "bound"): "attached",
    ("binding", "rebind"): "binding",
    ("binding", "wait"): "waiting",
    ("binding", "end"): "ended",
    ("attached", "pause"): "paused",
    ("attached", "rollback"): "rolling_back",
    ("attached", "end"): "ended",
    ("paused", "resume"): "attached",
    ("paused", "end"): "ended",
    ("rolling_back", "restored"): "attached",
    ("rolling_back", "end"): "ended",
}

BUILD: Table = {
    ("queued", "start"): "running",
    ("queued", "fail"): "failed",
    ("running", "start"): "running",
    ("running", "succeed"): "succeeded",
    ("running", "fail"): "failed",
}

VERSION: Table = {
    ("building", "publish"): "current",
    ("building", "fail"): "failed",
    ("current", "supersede"): "superseded",
    ("superseded", "publish"): "current",
    ("superseded", "collect"): "collected",
}

SESSION_END_REASONS = (
    "deleted",
    "expired",
    "idle",
    "sandbox_lost",
    "sandbox_failed",
    "wait_timeout",
    "template_failed",
    "capacity",
    "pool_deleted",
    "revoked",
)


def step(table: Table, state: str, event: str, *, what: str) -> str:
    """The state after ``event``. Raises Conflict ``illegal_transition`` if the table does not allow it."""
    try:
        return table[(state, event)]
    except KeyError:
        raise Conflict("illegal_transition", f"{what} is {state}; it can't {event} from there.") from None
