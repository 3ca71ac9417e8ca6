"""Tokens for the door in: short-lived, bound to one sandbox and one subject, proven by the sandbox's key.

The key of a sandbox is HMAC-SHA256(deployment secret, sandbox id), so the control plane stores no keys.
A token is ``subject.expires.mac`` with mac = hex HMAC-SHA256(key, "sandbox_id\\nsubject\\nexpires").
Subject is a session id (exec, files; only after that session was bound) or ``system`` (everything).
"""

from __future__ import annotations

import hashlib
import hmac

SYSTEM = "system"


class TokenError(Exception):
    """The token is malformed, expired, or not proven by this sandbox's key."""


def sandbox_key(deployment_secret: bytes, sandbox_id: str) -> bytes:
    return hmac.digest(deployment_secret, b"sandboxd\n" + sandbox_id.encode(), hashlib.sha256)


def binding_proof(deployment_secret: bytes, sandbox_id: str, claim_id: str, tenant: str) -> str:
    """Comes with a bind and is given back with the binding: whoever took over a sandbox can say that another
    session holds it, but not prove it. Only the control plane can make or check it."""
    text = f"binding\n{sandbox_id}\n{claim_id}\n{tenant}"
    return hmac.digest(deployment_secret, text.encode(), hashlib.sha256).hex()


def mint(key: bytes, sandbox_id: str, subject: str, expires_at: float) -> str:
    expires = str(int(expires_at))
    return f"{subject}.{expires}.{_mac(key, sandbox_id, subject, expires)}"


def verify(key: bytes, sandbox_id: str, token: str, now: float) -> str:
    """The token's subject. Raises TokenError."""
    parts = token.split(".")
    if len(parts) != 3:
        raise TokenError("malformed token")
    subject, expires, mac = parts
    expected = _mac(key, sandbox_id, subject, expires)
    if not hmac.compare_digest(mac.encode(), expected.encode()):
        raise TokenError("token was not made for this sandbox")
    if not expires.isdigit() or now >= int(expires):
        raise TokenError("token has expired")
    return subject


def _mac(key: bytes, sandbox_id: str, subject: str, expires: str) -> str:
    return hmac.digest(key, f"{sandbox_id}\n{subject}\n{expires}".encode(), hashlib.sha256).hex()
