"""The schema version of the stored state, and the steps from one version to the next.

A new layout raises SCHEMA_VERSION and adds the Migration that leads there. Processes of an older version
that still run are refused by every script from that moment on (``schema_changed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.errors import Permanent
from controlplane.store.connection import Link
from controlplane.store.scripts import make_script, read_lua

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step, from version ``start`` to ``start + 1``. ``lua`` sees PREFIX and changes what is stored; it
    must check what can fail before its first write, and runs together with the raise of the version."""

    start: int
    lua: str


MIGRATIONS: tuple[Migration, ...] = ()


class Schema:
    """Makes sure that the stored state has this program's layout."""

    def __init__(self, link: Link, version: int, migrations: Sequence[Migration]) -> None:
        self._link = link
        self._version = version
        self._steps = {m.start: make_script(f"migrate_{m.start}", _text(m)) for m in migrations}
        self._open = make_script("open", read_lua("open"))

    async def ensure(self) -> bool:
        """True if the state was made just now: there was none. Safe with any number of concurrent callers.

        Permanent ``schema_too_new``: a later version of the program migrated it. Permanent
        ``schema_unknown``: there is data that no step leads on from.
        """
        found, made = await self._link.run_bare(self._open, self._version)
        while found < self._version:
            step = self._steps.get(found)
            if step is None:
                raise Permanent(
                    "schema_unknown",
                    f"The stored state has schema {found}; nothing leads from there to {self._version}.",
                    hint="Use the program that wrote it, or another deployment name.",
                )
            found = await self._link.run_bare(step, found)
        if found > self._version:
            raise Permanent(
                "schema_too_new",
                f"The stored state has schema {found}; this program knows up to {self._version}.",
                hint="Upgrade this process.",
            )
        return bool(made)


def _text(migration: Migration) -> str:
    return read_lua("migrate").replace("-- STEP", migration.lua)
