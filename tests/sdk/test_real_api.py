"""The client and the command line against the real API, with simulated sandboxes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from controlplane.ids import TenantId
from controlplane.model.tenancy import Tenant
from tests.api.conftest import api, world
from tests.api.service import Api
from tests.cli.program import invoke
from warmpool import (
    AsyncSandbox,
    AsyncWarmpool,
    AuthenticationException,
    CapacityException,
    CommandExitException,
    ConflictException,
    DeniedException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
)

__all__ = ["api", "world"]


@pytest.fixture
async def client(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncWarmpool]:
    """A client of tenant acme; its URL and key are in the environment, too."""
    key = (await api.client()).headers["Authorization"].removeprefix("Bearer ")
    monkeypatch.setenv("WARMPOOL_API_URL", api.url)
    monkeypatch.setenv("WARMPOOL_API_KEY", key)
    async with AsyncWarmpool() as made:
        yield made


async def test_a_session_attaches_warm_runs_commands_moves_files_and_ends(api: Api, client: AsyncWarmpool) -> None:
    sandbox = await api.ready()
    async with await AsyncSandbox.create("demo", envs={"NAME": "ann"}, metadata={"run": "1"}) as sb:
        assert (sb.start, sb.start_reason, sb.session.sandbox) == ("warm", "ready_in_pool", sandbox)
        assert (sb.timings_ms["total"] or 0) > 0
        assert (await sb.commands.run("printenv NAME")).stdout == "ann\n"
        with pytest.raises(CommandExitException) as caught:
            await sb.commands.run("exit 3")
        assert caught.value.exit_code == 3
        await sb.files.write("notes/a.txt", "text")
        assert await sb.files.read("notes/a.txt") == "text"
        assert [await sb.files.exists(p) for p in ("notes/a.txt", "nope", "notes/a.txt/b")] == [True, False, False]
        assert [entry.path.rsplit("/", 1)[-1] for entry in await sb.files.list("notes")] == ["a.txt"]
        await sb.files.remove("notes")
        assert not await sb.files.exists("notes/a.txt")
        assert [s.id for s in await AsyncSandbox.list(metadata={"run": "1"})] == [sb.id]
        assert ((await sb.set_timeout(500)).expires_at or 0) > 0
    assert await AsyncSandbox.list(metadata={"run": "1"}) == []
    assert (await client.sessions.get(sb.id)).end_reason == "deleted"
    with pytest.raises(ConflictException, match="has ended"):
        await client.connect(sb.id)
    with pytest.raises(SandboxException, match="closed"):
        await sb.commands.run("true")


async def test_a_background_command_is_signalled_and_its_end_is_read(api: Api, client: AsyncWarmpool) -> None:
    await api.ready()
    async with await client.attach("demo") as sb:
        handle = await sb.commands.run("echo begun; sleep 1000", background=True)
        assert [c.id for c in await sb.commands.list()] == [handle.id]
        await handle.cancel()
        result = await handle.wait(check=False)
        assert (result.stdout, result.exit_code != 0) == ("begun\n", True)


async def test_a_miss_waits_in_the_queue_and_starts_cold(api: Api, client: AsyncWarmpool) -> None:
    positions: list[int | None] = []
    coming = asyncio.create_task(
        client.attach("demo", wait=60, on_progress=lambda s: positions.append(s.queue and s.queue.position))
    )
    while not positions:  # noqa: ASYNC110  a callback and a service, neither of which sets an event
        await asyncio.sleep(0.01)
    building = await api.world.sandbox()
    api.machine(building.id)
    await api.serve_queue(building.id)
    sb = await coming
    assert (sb.start, sb.start_reason) == ("cold", "pool_empty")
    assert positions[0] == 0
    assert len(await client.sessions.list()) == 1
    await sb.kill()


async def test_a_wait_that_is_over_and_a_cancelled_one_leave_no_session(api: Api, client: AsyncWarmpool) -> None:
    with pytest.raises(CapacityException):
        await client.attach("demo", wait=0.2)
    waiting = asyncio.create_task(client.attach("demo", wait=60))
    while not await client.sessions.list(state="waiting"):  # noqa: ASYNC110  as above
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert {s.state for s in await client.sessions.list()} == {"ended"}


async def test_one_idempotency_key_is_one_session_and_not_for_another_request(api: Api, client: AsyncWarmpool) -> None:
    await api.ready()
    await api.ready()
    first = await client.attach("demo", idempotency_key="job")
    assert (await client.attach("demo", idempotency_key="job")).id == first.id
    with pytest.raises(ConflictException, match="idempotency"):
        await client.attach("demo", idempotency_key="job", metadata={"other": "1"})


async def test_errors_have_their_types(api: Api, client: AsyncWarmpool) -> None:
    with pytest.raises(NotFoundException):
        await client.attach("nope")
    with pytest.raises(InvalidArgumentException):
        await client.attach("demo", timeout=0)
    with pytest.raises(InvalidArgumentException, match="resources"):
        await client.attach(template="demo", resources={"memory": "1Gi"})
    with pytest.raises(DeniedException):
        await client.keys.list()
    async with AsyncWarmpool(api_key="wp_0123456789abcdef_" + "x" * 43) as stranger:
        with pytest.raises(AuthenticationException):
            await stranger.whoami()


async def test_templates_and_pools_are_declared_with_what_the_client_sends(client: AsyncWarmpool) -> None:
    made = await client.templates.put("app", {"setup": ["make"], "resources": {"memory_bytes": 512 << 20}})
    assert (made.revision, made.resources.memory_bytes) == (1, 512 << 20)
    pool = await client.pools.put("app", {"template": "app", "min_ready": 0, "max_total": 2})
    assert (pool.template, pool.max_total) == ("app", 2)
    again = {"template": pool.template, "ref": pool.ref, "resources": pool.resources, "min_ready": 1, "max_total": 3}
    assert (await client.pools.put("app", again)).min_ready == 1
    assert (await client.pools.explain("app")).decision is None
    await client.pools.delete("app")
    assert [build.template for build in await client.builds.list()] == ["demo"]
    assert (await client.whoami()).role == "platform"


async def test_events_are_followed_from_now_on(api: Api, client: AsyncWarmpool) -> None:
    await api.ready()
    last = (await client.events.list()).next
    events = client.events.follow(after=last, kind="session.")
    first = asyncio.create_task(anext(events))
    sb = await client.attach("demo")
    event = await asyncio.wait_for(first, 20)
    assert (event.subject, event.kind.startswith("session.")) == (sb.id, True)


async def test_an_operator_makes_keys_and_limits_tenants(api: Api) -> None:
    key = (await api.client("operators", "ops")).headers["Authorization"].removeprefix("Bearer ")
    async with AsyncWarmpool(api_url=api.url, api_key=key) as ops:
        await api.store.put_tenant(Tenant(id=TenantId("acme")))
        assert (await ops.put_tenant("acme", max_sessions=3)).max_sessions == 3
        made = await ops.keys.create(tenant="acme", note="ci")
        async with AsyncWarmpool(api_url=api.url, api_key=made.key) as platform:
            assert (await platform.whoami()).tenant == "acme"
            await ops.keys.revoke(made.id)
            with pytest.raises(AuthenticationException):
                await platform.whoami()
        assert made.id in {k.id for k in await ops.keys.list(tenant="acme")}


async def test_the_command_line_does_the_main_job(api: Api, client: AsyncWarmpool) -> None:
    await api.ready()
    ran = await asyncio.to_thread(invoke, "run", "demo", "--", "echo hi; exit 5")
    assert (ran.exit_code, ran.stdout) == (5, "hi\n")
    assert "warm start" in ran.stderr
    listed = await asyncio.to_thread(invoke, "session", "ls", "--all", "--json")
    assert [s["state"] for s in json.loads(listed.stdout)["sessions"]] == ["ended"]
    for command in ("pool ls", "pool show demo", "template show demo", "sandbox ls", "events", "build ls"):
        shown = await asyncio.to_thread(invoke, *command.split())
        assert shown.exit_code == 0, shown.output
