"""What every runtime does. ``test_*.py`` beside it run it on each adapter; see runtime/port.py for the words."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controlplane.errors import Conflict, NotFound, Permanent, Retryable, WarmpoolError
from controlplane.ids import SandboxId, SessionId, new_sandbox_id
from controlplane.runtime.port import SandboxSpec
from tests.engines import BASE
from tests.runtime.stage import Setting, Stage, door, open_runtime, stage_of


class RuntimeContract:
    @pytest.fixture
    async def stage(self, setting: Setting) -> AsyncIterator[Stage]:
        async with stage_of(setting) as stage:
            yield stage

    async def test_a_new_sandbox_says_who_it_is_and_becomes_ready(self, stage: Stage) -> None:
        running = await stage.up()
        hello = await stage.agents.hello(door(running))
        assert hello.sandbox_id == running.id
        assert (await stage.agents.ready(door(running), wait_s=0)).ready
        assert running.state == "running"
        assert (await stage.run(running, "echo hello")).out == "hello\n"

    async def test_creating_it_again_gives_the_one_that_runs(self, stage: Stage) -> None:
        spec = stage.spec()
        first = await stage.up(spec)
        boot = (await stage.agents.hello(door(first))).boot_id
        again = await stage.runtime.create(spec)
        assert again == first
        assert (await stage.agents.hello(door(again))).boot_id == boot
        assert [each.id for each in await stage.runtime.list_sandboxes()] == [spec.id]

    async def test_two_processes_that_create_it_at_once_get_the_same_one(self, stage: Stage) -> None:
        spec = stage.spec()
        other = open_runtime(stage.setting)
        one, two = await asyncio.gather(stage.runtime.create(spec), other.create(spec))
        await other.close()
        assert one == two
        await stage.up(spec)
        assert [each.id for each in await stage.runtime.list_sandboxes()] == [spec.id]

    async def test_destroying_ends_it_leaves_nothing_and_may_be_repeated(self, stage: Stage) -> None:
        running = await stage.up()
        assert await stage.traces(running.id)
        await asyncio.gather(*(stage.runtime.destroy(running.id) for _ in range(3)))
        await stage.runtime.destroy(running.id)
        assert await stage.traces(running.id) == []
        assert await stage.runtime.inspect(running.id) is None
        assert await stage.runtime.list_sandboxes() == []
        stage.agents.forget(running.id)
        with pytest.raises(Retryable) as caught:
            await stage.agents.hello(door(running))
        assert caught.value.code == "sandbox_unreachable"

    async def test_destroying_what_never_was_is_success(self, stage: Stage) -> None:
        await stage.runtime.destroy(new_sandbox_id())

    @pytest.mark.parametrize("name", ["../escape", "a/b", "", "x" * 300, "a\0b", "-rf"])
    async def test_a_name_that_is_no_sandbox_id_touches_nothing(self, stage: Stage, name: str) -> None:
        running = await stage.up()
        odd = SandboxId(name)
        for call in (stage.runtime.destroy(odd), stage.runtime.inspect(odd), stage.runtime.commit(odd, "v1")):
            with pytest.raises(Permanent) as caught:
                await call
            assert caught.value.code == "invalid_sandbox_id"
        assert await stage.runtime.inspect(running.id) == running

    async def test_a_sandbox_that_was_destroyed_can_be_made_again(self, stage: Stage) -> None:
        spec = stage.spec()
        first = await stage.up(spec)
        boot = (await stage.agents.hello(door(first))).boot_id
        await stage.runtime.destroy(spec.id)
        stage.agents.forget(spec.id)
        second = await stage.up(spec)
        assert (await stage.agents.hello(door(second))).boot_id != boot

    async def test_sandboxes_are_found_again_by_their_labels(self, stage: Stage) -> None:
        labels = {"pool": "acme/odd = 'name\"", "purpose": "build", "empty": ""}
        made = await stage.runtime.create(stage.spec(labels=labels))
        other = open_runtime(stage.setting)
        [found] = await other.list_sandboxes()
        await other.close()
        assert found.id == made.id
        assert {name: found.labels[name] for name in labels} == labels
        assert found == await stage.runtime.inspect(made.id)

    async def test_another_deployment_neither_sees_nor_touches_it(self, stage: Stage) -> None:
        running = await stage.up()
        sealed = await stage.runtime.commit((await stage.up()).id, "theirs")
        async with stage_of(dataclasses.replace(stage.setting, deployment="neighbour")) as neighbour:
            assert await neighbour.runtime.list_sandboxes() == []
            assert await neighbour.runtime.inspect(running.id) is None
            await neighbour.runtime.destroy(running.id)
            await neighbour.runtime.delete_image(sealed.ref)
        assert await stage.runtime.inspect(running.id) == running
        assert (await stage.agents.hello(door(running))).sandbox_id == running.id
        assert sealed.ref in [image.ref for image in await stage.runtime.list_images()]

    async def test_an_image_holds_what_was_written_and_nothing_later(self, stage: Stage) -> None:
        original = await stage.up()
        await stage.write(original, "/workspace/kept.txt", "kept")
        sealed = await stage.runtime.commit(original.id, "version-1")
        assert sealed.parent == stage.base
        child = await stage.up(stage.spec(image=sealed.ref))
        assert await stage.read(child, "/workspace/kept.txt") == "kept"
        await stage.write(child, "/workspace/kept.txt", "changed")
        sibling = await stage.up(stage.spec(image=sealed.ref))
        assert await stage.read(sibling, "/workspace/kept.txt") == "kept"

    async def test_a_sealed_sandbox_is_stopped_and_its_image_is_made_once(self, stage: Stage) -> None:
        original = await stage.up()
        sealed = await stage.runtime.commit(original.id, "version-1")
        stopped = await stage.runtime.inspect(original.id)
        assert stopped is not None
        assert (stopped.state, stopped.door) == ("stopped", None)
        assert await stage.runtime.commit(original.id, "version-1") == sealed
        await stage.runtime.destroy(original.id)
        assert await stage.runtime.commit(original.id, "version-1") == sealed
        assert [image.ref for image in await stage.runtime.list_images() if image.parent] == [sealed.ref]

    async def test_sealing_a_missing_sandbox_says_so(self, stage: Stage) -> None:
        with pytest.raises(NotFound) as caught:
            await stage.runtime.commit(new_sandbox_id(), "version-1")
        assert caught.value.code == "sandbox_not_found"

    async def test_an_image_in_use_is_not_deleted_and_a_missing_one_is_success(self, stage: Stage) -> None:
        parent = await stage.runtime.commit((await stage.up()).id, "parent")
        user = await stage.up(stage.spec(image=parent.ref))
        await self._is_in_use(stage, parent.ref)
        child = await stage.runtime.commit(user.id, "child")
        await stage.runtime.destroy(user.id)
        await self._is_in_use(stage, parent.ref)
        await stage.runtime.delete_image(child.ref)
        await stage.runtime.delete_image(parent.ref)
        await stage.runtime.delete_image(parent.ref)
        assert [image for image in await stage.runtime.list_images() if image.parent] == []

    async def _is_in_use(self, stage: Stage, ref: str) -> None:
        with pytest.raises(Conflict) as caught:
            await stage.runtime.delete_image(ref)
        assert caught.value.code == "image_in_use"

    async def test_an_image_that_is_not_there_cannot_be_started_and_leaves_nothing(self, stage: Stage) -> None:
        spec = stage.spec(image=stage.base + "-missing")
        with pytest.raises(NotFound) as caught:
            await stage.runtime.create(spec)
        assert caught.value.code == "image_not_found"
        assert await stage.traces(spec.id) == []

    async def test_a_base_is_made_once_and_an_unknown_one_is_refused(self, stage: Stage) -> None:
        assert (await stage.runtime.ensure_base(BASE, print)).ref == stage.base
        assert len(await stage.runtime.base_digest(BASE)) == 64
        for call in (stage.runtime.base_digest("nowhere"), stage.runtime.ensure_base("nowhere", print)):
            with pytest.raises(Permanent) as caught:
                await call
            assert caught.value.code == "unknown_base"

    async def test_the_first_session_holds_it_and_a_second_is_refused(self, stage: Stage) -> None:
        where = door(await stage.up())
        first = await stage.agents.bind(where, SessionId("se-one"), "acme", {"COLOUR": "blue"}, {"job": "7"})
        again = await stage.agents.bind(where, SessionId("se-one"), "acme", {"COLOUR": "blue"}, {"job": "7"})
        assert (first.first, again.first, again.bound_at) == (True, False, first.bound_at)
        with pytest.raises(Conflict) as caught:
            await stage.agents.bind(where, SessionId("se-two"), "acme", {}, {})
        assert caught.value.code == "already_bound"
        binding = await stage.agents.binding(where)
        assert (binding.claim_id, binding.tenant, binding.labels) == ("se-one", "acme", {"job": "7"})

    async def test_a_disk_limit_is_held_or_refused_never_ignored(self, stage: Stage) -> None:
        asked = stage.spec()
        asked = replace(asked, resources=replace(asked.resources, disk_bytes=64 * 1024 * 1024))
        capabilities = await stage.runtime.capabilities()
        if capabilities.holds("disk") or capabilities.runtime == "simulated":
            await stage.up(asked)
            return
        await self.refused(stage, asked)
        await stage.up(replace(asked, trusted=True))

    async def refused(self, stage: Stage, spec: SandboxSpec) -> None:
        with pytest.raises(WarmpoolError) as caught:
            await stage.runtime.create(spec)
        assert caught.value.code == "limit_not_held"
        assert await stage.traces(spec.id) == []

    async def test_whatever_is_not_held_says_why_and_what_would_help(self, stage: Stage) -> None:
        capabilities = await stage.runtime.capabilities()
        assert capabilities.usable, capabilities.reason
        assert {held.name for held in capabilities.limits} == {"memory", "cpu", "pids", "disk"}
        assert {held.name for held in capabilities.isolation} >= {"user_namespace", "network_none", "seccomp"}
        for held in (*capabilities.limits, *capabilities.isolation):
            assert held.how, held
            assert held.held or held.fix or capabilities.runtime == "simulated", held
