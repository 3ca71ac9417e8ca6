"""The form of API keys: ``wp_<id>_<secret>``, and how one is proven.

The secret is 32 random bytes (43 base64url characters), so a fast keyed hash is enough to store it: there
is nothing to guess. The hash key (pepper) derives from the deployment secret: a copy of the store alone
proves nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from controlplane.ids import ApiKeyId, TenantId
from controlplane.model.tenancy import ApiKey, Role

_KEY = re.compile(r"wp_([0-9a-z]{16})_([A-Za-z0-9_-]{43})")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def pepper(deployment_secret: bytes) -> bytes:
    return hmac.digest(deployment_secret, b"api keys\n", hashlib.sha256)


def mint_key(key_pepper: bytes, tenant: TenantId, role: Role, note: str, now: float) -> tuple[ApiKey, str]:
    """A new key: what is stored, and the text that is shown once."""
    key_id = ApiKeyId("".join(secrets.choice(_ALPHABET) for _ in range(16)))
    secret = secrets.token_urlsafe(32)
    return key_record(key_pepper, tenant, role, note, now, key_id, secret), f"wp_{key_id}_{secret}"


def key_record(
    key_pepper: bytes, tenant: TenantId, role: Role, note: str, now: float, key_id: ApiKeyId, secret: str
) -> ApiKey:
    """What is stored of a key: a hash takes the place of its secret."""
    mac = _mac(key_pepper, key_id, secret)
    return ApiKey(id=key_id, tenant=tenant, role=role, mac=mac, note=note, created_at=now)


def parse_key(text: str) -> tuple[ApiKeyId, str] | None:
    """Id and secret of a key's text; None if it has not the form of one."""
    match = _KEY.fullmatch(text)
    return (ApiKeyId(match[1]), match[2]) if match else None


def proves(key_pepper: bytes, record: ApiKey, secret: str) -> bool:
    return hmac.compare_digest(record.mac, _mac(key_pepper, record.id, secret))


def _mac(key_pepper: bytes, key_id: ApiKeyId, secret: str) -> str:
    return hmac.digest(key_pepper, f"{key_id}\n{secret}".encode(), hashlib.sha256).hex()
