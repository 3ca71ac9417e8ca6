"""The claim: from a request to a session with a sandbox, or a place in the queue, in one step."""

from __future__ import annotations

import math
from typing import Any

from controlplane.errors import Permanent
from controlplane.ids import PoolKey, SandboxId, SessionId
from controlplane.model.sandbox import Session
from controlplane.store.codec import decode, decode_all
from controlplane.store.parts import StorePart
from controlplane.store.port import ClaimRequest, ClaimResult


def check_ttl(ttl_s: float) -> None:
    if not math.isfinite(ttl_s) or ttl_s <= 0:
        raise Permanent("invalid_ttl", f"A lease of {ttl_s} s is not possible.", hint="Ask for more than 0 seconds.")


def _claim_result(answer: list[Any]) -> ClaimResult:
    outcome, raw, position, sessions_now = answer
    return ClaimResult(
        outcome=outcome.decode(),
        session=None if raw is None else decode(Session, raw),
        position=None if position < 0 else position,
        sessions_now=sessions_now,
    )


class Claims(StorePart):
    async def claim(self, request: ClaimRequest) -> ClaimResult:
        check_ttl(request.ttl_s)
        return _claim_result(await self._link.run("claim", request))

    async def claim_next(self, session: SessionId, bad: SandboxId, reason: str) -> ClaimResult:
        return _claim_result(await self._link.run("claim_next", {"session": session, "bad": bad, "reason": reason}))

    async def bound(self, session: SessionId, sandbox: SandboxId) -> Session:
        return decode(Session, await self._link.run("bound", {"session": session, "sandbox": sandbox}))

    async def serve_waiting(self, pool: PoolKey, limit: int) -> list[Session]:
        return decode_all(Session, await self._link.run("serve_waiting", {"pool": pool, "limit": limit}))

    async def end_waiting(self, pool: PoolKey, reason: str, detail: str, actor: str) -> list[Session]:
        args = {"pool": pool, "reason": reason, "detail": detail, "actor": actor}
        return decode_all(Session, await self._link.run("end_waiting", args))
