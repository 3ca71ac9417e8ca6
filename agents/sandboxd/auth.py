"""Who may do what at the door in: ``system`` everything, a session only after it was bound."""

from __future__ import annotations

import time

from agents.sandboxd.problems import ProblemError
from agents.wire.token import SYSTEM, TokenError, verify


class Door:
    """Proves tokens with this sandbox's key."""

    def __init__(self, sandbox_id: str, key: bytes) -> None:
        self._sandbox_id = sandbox_id
        self._key = key

    def admit(self, authorization: str | None, claim_id: str | None) -> str:
        """The subject (``system`` or the bound claim's id); 401 without proof, 403 for another session."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise ProblemError(401, "token_missing", "The request has no bearer token.")
        try:
            subject = verify(self._key, self._sandbox_id, token.strip(), time.time())
        except TokenError as error:
            raise ProblemError(401, "token_invalid", f"The token was refused: {error}.") from error
        if subject != SYSTEM and subject != claim_id:
            raise ProblemError(403, "not_bound", "This token's session does not hold this sandbox.")
        return subject


def require_system(subject: str) -> None:
    if subject != SYSTEM:
        raise ProblemError(403, "system_only", "Only the control plane itself may do this.")
