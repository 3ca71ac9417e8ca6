"""Names of the stored keys.

Every key is ``wp:{deployment}:name`` or ``wp:{deployment}:name:of``; the braces keep one deployment in one
slot of a cluster. The scripts build names in the same way (``key`` in prelude.lua).

Hashes, id → JSON record: tenants, apikeys, templates, template_facts, pools, lineages, versions, builds,
sandboxes, sessions. Hashes, pool → value: recency (last use), waiting (length of a queue that is not empty),
decisions. ``idempotency:TENANT``: key → session. ``counters``: name → total.
Sorted sets: ``ready:POOL`` (``version|id`` by ready_at), ``waiters:POOL`` (by place), ``deadlines``, ``idle``,
``live``, ``live:TENANT``, ``ended``, ``ended:TENANT``, ``builds_by_time``, ``builds_by_time:TEMPLATE``.
Sets: ``pool_sandboxes:POOL``, ``version_sandboxes:VERSION``, ``template_pools:TEMPLATE``,
``template_lineages:TEMPLATE``. Hash ``announced:ROLE``: holder → until and facts. Others: schema, leader,
fence, queue_front, queue_back, events (stream), wake (list of at most one), sessions_moved (channel).
"""

from __future__ import annotations

import re

from controlplane.errors import Permanent

_DEPLOYMENT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")


class Keys:
    """Key names of one deployment."""

    __slots__ = ("prefix",)

    def __init__(self, deployment: str) -> None:
        if not _DEPLOYMENT.fullmatch(deployment):
            raise Permanent(
                "invalid_deployment",
                f"Deployment name {deployment[:80]!r} is not valid.",
                hint="Use a-z, 0-9 and '-', not starting or ending with '-'.",
            )
        self.prefix = f"wp:{{{deployment}}}:"

    def __call__(self, name: str, of: str | None = None) -> str:
        return self.prefix + name if of is None else f"{self.prefix}{name}:{of}"
