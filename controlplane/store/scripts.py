"""The Lua scripts: their text, in front of which stand the settings they need and the lifecycle tables.

The tables come from ``model.lifecycle``, so that scripts and code follow one truth.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from controlplane.model import lifecycle

_FOLDER = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConfig:
    """What the scripts are told once. ``bind_limit_s``: longest time in ``binding``; ``drain_limit_s``: when
    a draining sandbox counts as stuck; ``keep_builds``: ended builds kept per template. ``max_…``: more are refused."""

    schema: int
    max_events: int
    ended_session_keep_s: float
    max_ended_sessions: int
    bind_limit_s: float
    drain_limit_s: float
    keep_builds: int
    max_pools_per_tenant: int
    max_templates_per_tenant: int
    max_lineages_per_template: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    name: str
    text: str
    sha: str


@cache
def read_lua(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _table(name: str, table: lifecycle.Table) -> str:
    rows = ", ".join(f"['{state} {event}'] = '{to}'" for (state, event), to in table.items())
    return f"local {name} = {{{rows}}}"


def _head(config: ScriptConfig) -> str:
    values = ", ".join(f"{name} = {getattr(config, name)!r}" for name in ScriptConfig.__slots__)
    return "\n".join(
        [
            f"local CONFIG = {{{values}}}",
            _table("SANDBOX", lifecycle.SANDBOX),
            _table("SESSION", lifecycle.SESSION),
            _table("BUILD", lifecycle.BUILD),
        ]
    )


def make_script(name: str, text: str) -> Script:
    return Script(name=name, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Scripts:
    """Every script of one store, made when first asked for."""

    def __init__(self, config: ScriptConfig) -> None:
        self._front = "\n".join([_head(config), read_lua("prelude"), read_lua("moves")])
        self._made: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        script = self._made.get(name)
        if script is None:
            script = self._made[name] = make_script(name, f"{self._front}\n{read_lua(name)}")
        return script
