"""The scheduler's view: everything a plan needs, read at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from controlplane.ids import LineageKey, PoolKey, lineage_key
from controlplane.model.actions import Observed
from controlplane.model.sandbox import Sandbox
from controlplane.model.template import Lineage, Pool
from controlplane.store.codec import LastSeen, decode, decode_all
from controlplane.store.parts import StorePart

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """What claims and plans need of a template; kept beside it by put_template."""

    revision: int
    strict: bool
    digest: str


def _by_pool(flat: Mapping[bytes, bytes], number: type[T]) -> dict[PoolKey, T]:
    return {PoolKey(pool.decode()): number(value) for pool, value in flat.items()}


class Observing(StorePart):
    _seen_pools: LastSeen[Pool]
    _seen_sandboxes: LastSeen[Sandbox]

    async def observe(self) -> Observed:
        time, pools, sandboxes, lineages, facts, waiting, recency = await self._link.read_together(
            ("TIME",),
            ("HVALS", self._key("pools")),
            ("HVALS", self._key("sandboxes")),
            ("HVALS", self._key("lineages")),
            ("HGETALL", self._key("template_facts")),
            ("HGETALL", self._key("waiting")),
            ("HGETALL", self._key("recency")),
        )
        known = {lineage.key: lineage for lineage in decode_all(Lineage, lineages)}
        found_pools = self._seen_pools.decode_all(pools)
        wanted = {lineage_key(pool.template, pool.ref): pool.template for pool in found_pools}
        wanted |= {key: lineage.template for key, lineage in known.items()}
        templates = {key.decode(): decode(TemplateFacts, raw) for key, raw in facts.items()}
        wanted = {key: template for key, template in wanted.items() if template in templates}
        return Observed(
            now=_seconds(time),
            pools=found_pools,
            sandboxes=self._seen_sandboxes.decode_all(sandboxes),
            lineages=known,
            revisions={key: templates[template].revision for key, template in wanted.items()},
            strict=frozenset(key for key, template in wanted.items() if templates[template].strict),
            waiting=_by_pool(waiting, int),
            last_used_at=_by_pool(recency, float),
            building_lineages=frozenset(LineageKey(key) for key, lineage in known.items() if lineage.build),
        )

    async def explain(self, decisions: Mapping[PoolKey, str]) -> None:
        if decisions:
            words = [word for pair in decisions.items() for word in pair]
            await self._link.command("HSET", self._key("decisions"), *words)

    async def explained(self, pool: PoolKey) -> str | None:
        text = await self._link.command("HGET", self._key("decisions"), pool)
        return None if text is None else str(text, "utf-8")

    async def pool_used_at(self, key: PoolKey) -> float | None:
        at = await self._link.command("HGET", self._key("recency"), key)
        return None if at is None else float(at)


def _seconds(time: tuple[int, int]) -> float:
    seconds, micros = time
    return int(seconds) + int(micros) / 1e6
