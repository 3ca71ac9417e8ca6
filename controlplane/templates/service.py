"""Templates as tenants see them: put, read, share, delete, ask for a build."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controlplane.errors import Denied, NotFound, Permanent
from controlplane.ids import LineageKey, TemplateKey, TenantId, lineage_key, template_key
from controlplane.model.template import Lineage, Template
from controlplane.runtime.port import Capabilities
from controlplane.store.port import Store
from controlplane.templates.checks import check_public_hosts, check_ref, check_template


class TemplateService:
    """``capabilities`` tells what the deployment's runtime can hold, None while no worker reported it."""

    def __init__(
        self,
        store: Store,
        *,
        min_remaining_s: float = 60.0,
        capabilities: Callable[[], Awaitable[Capabilities | None]] | None = None,
    ) -> None:
        self._store = store
        self._min_remaining_s = min_remaining_s
        self._capabilities = capabilities

    async def put(self, template: Template, *, ops: bool) -> Template:
        """Create or replace; idempotent. ``key`` must be that of ``tenant`` and ``name``. ``trusted`` is for
        operators: Denied ``ops_only``; so are hosts that are not public: Permanent ``host_not_public``. A tenant's
        change to an operator's template takes trust and such hosts away again, since nobody vouched for the new
        content."""
        if template.key != template_key(template.tenant, template.name):
            raise Permanent("invalid_name", f"{template.key[:80]!r} is not the key of this tenant and name.")
        check_template(template, min_remaining_s=self._min_remaining_s)
        if template.trusted and not ops:
            raise Denied(
                "ops_only",
                "Only an operator can mark a template as trusted.",
                hint="Leave out 'trusted', or have a key of role ops put it.",
            )
        if not ops:
            check_public_hosts(template)
        await self._check_held(template)
        return await self._store.put_template(replace(template, by_operator=ops))

    async def get(self, key: TemplateKey, *, reader: TenantId | None) -> Template:
        """NotFound also for what exists but is not shared with ``reader``; None reads all (operators)."""
        template = await self._store.get_template(key)
        if reader is not None and not may_use(template, reader):
            raise NotFound("template_not_found", f"There is no template {key!r}.")
        return template

    async def list(self, *, reader: TenantId | None) -> list[Template]:
        """One's own and those shared with one, by key."""
        every = await self._store.list_templates()
        return sorted((t for t in every if reader is None or may_use(t, reader)), key=lambda t: t.key)

    async def delete(self, key: TemplateKey) -> None:
        """Missing: success. Conflict ``template_in_use`` while a pool names it."""
        await self._store.delete_template(key)

    async def lineages(self, key: TemplateKey) -> builtins.list[Lineage]:
        return [lineage for lineage in await self._store.list_lineages() if lineage.template == key]

    async def build(self, key: TemplateKey, ref: str | None) -> LineageKey:
        """A person asks for a build now: failures and back-off of the lineage are forgotten."""
        await self._store.get_template(key)
        lineage = lineage_key(key, None if ref is None else check_ref(ref))
        await self._store.reset_lineage(lineage)
        await self._store.wake()
        return lineage

    async def _check_held(self, template: Template) -> None:
        """Refuse now what the runtime would refuse later, where it is known."""
        if template.trusted or self._capabilities is None:
            return
        capabilities = await self._capabilities()
        # Simulated sandboxes hold nothing and run nothing: they take every template.
        if capabilities is None or capabilities.runtime == "simulated":
            return
        wanted = [
            name
            for name, asked in (("disk", template.resources.disk_bytes), ("nested_docker", template.docker))
            if asked
        ]
        for held in (*capabilities.limits, *capabilities.isolation):
            if held.name in wanted and not held.held:
                raise Permanent(
                    "limit_not_held",
                    f"The runtime {capabilities.runtime} cannot hold {held.name} here: {held.how}.",
                    hint=held.fix or "Leave it out, or have an operator mark the template as trusted.",
                )


def may_use(template: Template, tenant: TenantId) -> bool:
    return template.tenant == tenant or tenant in template.shared_with or "*" in template.shared_with
