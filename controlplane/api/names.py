"""Names in requests to keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controlplane.ids import TenantId, check_name

K = TypeVar("K")


def key_of(tenant: TenantId, name: str, make: Callable[[TenantId, str], K]) -> K:
    """The key that ``name`` means to ``tenant``: its own, or another's when written ``tenant/name``.

    Permanent ``invalid_name``."""
    owner, slash, bare = name.partition("/")
    if not slash:
        return make(tenant, name)
    return make(TenantId(check_name(owner, "tenant")), bare)
