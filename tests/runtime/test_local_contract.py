"""The local runtime keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.stage import Setting
from tests.runtime.walls import RealRuntimeContract


@pytest.mark.real
class TestLocalRuntime(RealRuntimeContract):
    @pytest.fixture
    def setting(self, shared_folder: Path) -> Setting:
        return Setting(kind="local", state_dir=shared_folder)
