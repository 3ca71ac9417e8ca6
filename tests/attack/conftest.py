from __future__ import annotations

from tests.api.conftest import acme, api, ops, world
from tests.runtime.local.conftest import base_ref, create, runtime, state_dir

__all__ = ["acme", "api", "base_ref", "create", "ops", "runtime", "state_dir", "world"]
