"""Messages of the egress gateway's control socket. Times are epoch seconds, sizes bytes.

| call | body → answer |
|---|---|
| GET /v1/health | → GatewayHealth |
| GET /v1/doors | → DoorList |
| PUT /v1/doors/{id} | DoorSpec → DoorReport (idempotent; replaces the policy) |
| GET /v1/doors/{id} | → DoorReport, or 404 ``door_not_found`` |
| DELETE /v1/doors/{id} | → 204 (missing: 204) |

Errors are ``agents.wire.Problem`` bodies.
"""

from __future__ import annotations

import msgspec


class DoorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a door is: where its socket stands on the host, and which hosts may be reached through it.

    ``socket_path`` None means ``<doors-dir>/<id>/egress.sock``; its directory must exist. ``allow`` holds
    exact hosts, ``host`` (ports 443 and 80) or ``host:port``; an address only as itself. An empty list
    allows nothing. ``labels`` are repeated in every audit row.
    """

    socket_path: str | None = None
    allow: list[str] = []
    labels: dict[str, str] = {}


class DeniedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One refused request; ``target`` is what was asked for, shortened, ``reason`` the code of the answer."""

    at: float
    target: str
    reason: str


class DoorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A door and its counters since the gateway's start.

    ``denied``, ``bad_requests`` and ``failed`` count by the code of the answer: not allowed by the policy,
    not a well-formed request, allowed but not reached. ``bytes_up`` went to upstreams.
    """

    id: str
    socket_path: str
    allow: list[str]
    labels: dict[str, str]
    connections_open: int
    connections_total: int
    allowed: int
    denied: dict[str, int]
    bad_requests: dict[str, int]
    failed: dict[str, int]
    bytes_up: int
    bytes_down: int
    last_denied: list[DeniedTarget]


class DoorList(msgspec.Struct, frozen=True, kw_only=True):
    doors: list[DoorReport]


class GatewayHealth(msgspec.Struct, frozen=True, kw_only=True):
    """``dropped_doors`` were not re-opened at the last start, by id and reason; ``audit_rows_lost`` counts
    rows that could not be written (a full disk)."""

    status: str
    pid: int
    started_at: float
    doors: int
    connections_open: int
    audit_rows_lost: int
    dropped_doors: dict[str, str]
