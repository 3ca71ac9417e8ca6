from __future__ import annotations

from tests.api.conftest import acme, api, ops, world

__all__ = ["acme", "api", "ops", "world"]
