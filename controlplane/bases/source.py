"""The bases of one host as one object, for a runtime that needs to name them only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controlplane.bases.builder import Base, ensure_base, recipe_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCache:
    """``cache_dir``: may be shared by deployments. ``images_dir``: where the recipes are. ``package_archive``: an
    archive of old Debian packages, see ``fetch_packages``; None where there is none."""

    cache_dir: Path
    images_dir: Path
    package_archive: str | None = None

    async def ensure(self, base: str, progress: Callable[[str], None]) -> Base:
        """The built base, see ``ensure_base``."""
        return await ensure_base(
            base,
            cache_dir=self.cache_dir,
            images_dir=self.images_dir,
            progress=progress,
            package_archive=self.package_archive,
        )

    async def recipe(self, base: str) -> str:
        """Digest of what the base is built from, without building it, see ``recipe_digest``."""
        return await asyncio.to_thread(recipe_digest, base, self.images_dir)


def default_images_dir() -> Path:
    """The recipes that come with Warmpool: installed beside this package, or those of the checkout."""
    installed = Path(__file__).parent / "data"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "images"
