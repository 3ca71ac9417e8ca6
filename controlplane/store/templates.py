"""Templates and pools."""

from __future__ import annotations

import hashlib

from controlplane.errors import Permanent
from controlplane.ids import PoolKey, TemplateKey, new_id
from controlplane.model.template import Pool, Template
from controlplane.store.codec import decode, encode
from controlplane.store.parts import StorePart

# Everything that can change what a build makes, or whether it succeeds. The rest (ttl, sharing, strictness)
# applies to sandboxes as they are.
_NOT_BUILT = (
    "session_ttl_s",
    "idle_timeout_s",
    "max_age_s",
    "strict",
    "shared_with",
    "revision",
    "created_at",
    "updated_at",
)


def build_digest(template: Template) -> str:
    """Equal for two templates of one key exactly if a build of them reads the same."""
    return hashlib.sha256(encode(template, without=_NOT_BUILT)).hexdigest()


class Templates(StorePart):
    async def put_template(self, template: Template) -> Template:
        args = {
            "key": template.key,
            "tenant": template.tenant,
            "digest": build_digest(template),
            "strict": template.strict,
        }
        record = encode(template, without=("revision", "created_at", "updated_at"))
        return decode(Template, await self._link.run("put_template", args, record))

    async def get_template(self, key: TemplateKey) -> Template:
        return await self._need(Template, "templates", key, "template")

    async def list_templates(self) -> list[Template]:
        return await self._all(Template, "templates")

    async def delete_template(self, key: TemplateKey) -> None:
        await self._link.run("delete_template", {"key": key})

    async def put_pool(self, pool: Pool) -> Pool:
        if pool.max_total < 0 or pool.min_ready < 0 or pool.min_ready > pool.max_total:
            raise Permanent(
                "invalid_pool_size",
                f"A pool can't keep {pool.min_ready} ready with at most {pool.max_total} in all.",
                hint="Choose 0 ≤ min_ready ≤ max_total.",
            )
        return decode(Pool, await self._link.run("put_pool", {"uid": new_id("pl")}, encode(pool)))

    async def get_pool(self, key: PoolKey) -> Pool:
        return await self._need(Pool, "pools", key, "pool")

    async def list_pools(self) -> list[Pool]:
        return await self._all(Pool, "pools")

    async def set_pool_pin(self, key: PoolKey, ready: int | None) -> Pool:
        if ready is not None and ready < 0:
            raise Permanent("invalid_pool_size", f"A pool can't keep {ready} ready.", hint="Choose 0 or more.")
        return decode(Pool, await self._link.run("pin_pool", {"pool": key, "ready": ready}))

    async def delete_pool(self, key: PoolKey) -> None:
        await self._link.run("delete_pool", {"pool": key})

    async def remove_pool(self, key: PoolKey, fence: int) -> bool:
        return bool(await self._link.run("remove_pool", {"pool": key, "fence": fence}))
