"""The parts of ``Warmpool``: sessions, templates, pools, builds, sandboxes, events, keys. Each written once.

``tenant`` everywhere: for operators, whose things are meant; None is the key's own tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from warmpool import types as t
from warmpool.attach import end_session, get_session, keep_alive
from warmpool.effects import Call, Flow, given, params_of, path_of
from warmpool.follow import follow_events
from warmpool.logs import follow_build
from warmpool.requests import request
from warmpool.sandbox import Sessions, list_sessions
from warmpool.verbs import Async, Sync, stream_of, verb

if TYPE_CHECKING:
    from warmpool.drivers import AsyncDriver, SyncDriver

T = TypeVar("T")
Body = Mapping[str, object]
TemplateList = list[t.Template]
PoolList = list[t.Pool]
BuildList = list[t.Build]
SandboxList = list[t.SandboxRecord]
KeyList = list[t.ApiKey]


class _Lists(msgspec.Struct):
    """What lists come in: one of these fields."""

    templates: list[t.Template] = []
    pools: list[t.Pool] = []
    builds: list[t.Build] = []
    sandboxes: list[t.SandboxRecord] = []
    keys: list[t.ApiKey] = []


class _Started(msgspec.Struct):
    lineage: t.LineageReport | str


class _Part:
    def __init__(self, driver: Any) -> None:
        self._driver = driver


def _get(answer: type[T], *path: str, **query: object) -> Call[T]:
    return Call(method="GET", path=path_of(*path), answer=answer, params=params_of(**query))


def _delete(*path: str, **query: object) -> Call[None]:
    return Call(method="DELETE", path=path_of(*path), answer=None, params=params_of(**query))


class _Sessions(_Part):
    @verb
    def get(self, session: str, *, wait: float | None = None, tenant: str | None = None) -> Flow[t.Session]:
        """One session; ``wait`` seconds are given to one that is not attached yet."""
        return (yield from request(get_session(session, wait_s=wait, tenant=tenant)))

    @verb
    def list(
        self,
        *,
        metadata: Mapping[str, str] | None = None,
        state: str | None = None,
        limit: int = 100,
        tenant: str | None = None,
    ) -> Flow[Sessions]:
        """Sessions, newest first."""
        return (yield from list_sessions(metadata=metadata, state=state, limit=limit, tenant=tenant))

    @verb
    def end(self, session: str, *, tenant: str | None = None) -> Flow[t.Session]:
        """End it; a repeat, and an unknown id, succeed as well."""
        return (yield from request(end_session(session, tenant=tenant)))

    @verb
    def keepalive(self, session: str, ttl_s: float | None = None) -> Flow[t.Session]:
        """The lease now ends ``ttl_s`` from now (None: the session's own ttl)."""
        return (yield from request(keep_alive(session, ttl_s)))


class _Templates(_Part):
    @verb
    def put(self, name: str, template: Body, *, tenant: str | None = None) -> Flow[t.Template]:
        """Create or replace a template. ``template``: base, repository, setup, env, resources, …"""
        call = Call(
            method="PUT",
            path=path_of("templates", name),
            answer=t.Template,
            params=params_of(tenant=tenant),
            body=dict(template),
        )
        return (yield from request(call))

    @verb
    def get(self, name: str, *, tenant: str | None = None) -> Flow[t.Template]:
        return (yield from request(_get(t.Template, "templates", name, tenant=tenant)))

    @verb
    def list(self, *, tenant: str | None = None) -> Flow[TemplateList]:
        return (yield from request(_get(_Lists, "templates", tenant=tenant))).templates

    @verb
    def delete(self, name: str, *, tenant: str | None = None) -> Flow[None]:
        """Remove it. Raises ConflictException while a pool names it; a missing one is removed already."""
        yield from request(_delete("templates", name, tenant=tenant))

    @verb
    def build(self, name: str, *, ref: str | None = None, tenant: str | None = None) -> Flow[t.LineageReport | str]:
        """Forget earlier failures and build it now."""
        call = Call(
            method="POST",
            path=path_of("templates", name, "build"),
            answer=_Started,
            params=params_of(tenant=tenant),
            body=given(ref=ref),
        )
        return (yield from request(call)).lineage


class _Pools(_Part):
    @verb
    def put(self, name: str, pool: Body, *, tenant: str | None = None) -> Flow[t.Pool]:
        """Create or change a pool. ``pool``: template, ref, resources, min_ready, max_total."""
        call = Call(
            method="PUT", path=path_of("pools", name), answer=t.Pool, params=params_of(tenant=tenant), body=dict(pool)
        )
        return (yield from request(call))

    @verb
    def get(self, name: str, *, tenant: str | None = None) -> Flow[t.Pool]:
        return (yield from request(_get(t.Pool, "pools", name, tenant=tenant)))

    @verb
    def list(self, *, tenant: str | None = None) -> Flow[PoolList]:
        return (yield from request(_get(_Lists, "pools", tenant=tenant))).pools

    @verb
    def delete(self, name: str, *, tenant: str | None = None) -> Flow[None]:
        """Drain it to nothing and remove it; attached sessions live on."""
        yield from request(_delete("pools", name, tenant=tenant))

    @verb
    def pin(self, name: str, ready: int | None, *, tenant: str | None = None) -> Flow[t.Pool]:
        """Keep exactly ``ready`` sandboxes ready, whatever min and demand say; None lets go."""
        call = Call(
            method="PUT",
            path=path_of("pools", name, "pin"),
            answer=t.Pool,
            params=params_of(tenant=tenant),
            body={"ready": ready},
        )
        return (yield from request(call))

    @verb
    def explain(self, name: str, *, tenant: str | None = None) -> Flow[t.Explanation]:
        """The scheduler's last decision on the pool, and why."""
        return (yield from request(_get(t.Explanation, "pools", name, "explain", tenant=tenant)))


class _Builds(_Part):
    @verb
    def list(self, *, template: str | None = None, limit: int = 20, tenant: str | None = None) -> Flow[BuildList]:
        """Builds, newest first."""
        return (yield from request(_get(_Lists, "builds", template=template, limit=limit, tenant=tenant))).builds

    @verb
    def get(self, build: str, *, tenant: str | None = None) -> Flow[t.Build]:
        return (yield from request(_get(t.Build, "builds", build, tenant=tenant)))

    @stream_of(t.LogChunk)
    def logs(
        self, build: str, *, step: str | None = None, follow: bool = False, tenant: str | None = None
    ) -> Flow[None]:
        """The log, step by step, as pieces; ``follow``: until the build has ended."""
        yield from follow_build(build, step=step, follow=follow, tenant=tenant)


class _Sandboxes(_Part):
    @verb
    def list(self, *, pool: str | None = None, tenant: str | None = None) -> Flow[SandboxList]:
        return (yield from request(_get(_Lists, "sandboxes", pool=pool, tenant=tenant))).sandboxes

    @verb
    def get(self, sandbox: str, *, tenant: str | None = None) -> Flow[t.SandboxRecord]:
        return (yield from request(_get(t.SandboxRecord, "sandboxes", sandbox, tenant=tenant)))


class _Events(_Part):
    @verb
    def list(
        self, *, after: str | None = None, kind: str | None = None, tenant: str | None = None
    ) -> Flow[t.EventsPage]:
        """The events after an id (None: the oldest kept), and where to go on."""
        return (yield from request(_get(t.EventsPage, "events", after=after, kind=kind, tenant=tenant)))

    @stream_of(t.Event)
    def follow(self, *, after: str = "$", kind: str | None = None, tenant: str | None = None) -> Flow[None]:
        """Events as they happen, without end; ``after``: an id, ``0`` for the oldest kept, ``$`` for now."""
        yield from follow_events(after, kind, tenant)


class _Keys(_Part):
    @verb
    def create(self, *, role: str = "platform", note: str = "", tenant: str | None = None) -> Flow[t.NewApiKey]:
        """A new key; its ``key`` can't be read again."""
        body = given(role=role, note=note or None, tenant=tenant)
        # Not repeatable: a second request would make a second key that nobody holds.
        call = Call(method="POST", path=path_of("keys"), answer=t.NewApiKey, body=body, repeatable=False)
        return (yield from request(call))

    @verb
    def list(self, *, tenant: str | None = None) -> Flow[KeyList]:
        return (yield from request(_get(_Lists, "keys", tenant=tenant))).keys

    @verb
    def revoke(self, key: str) -> Flow[None]:
        """It stops working at once."""
        yield from request(_delete("keys", key))


class SessionsPart(_Sessions, Sync):
    _driver: SyncDriver


class AsyncSessionsPart(_Sessions, Async):
    _driver: AsyncDriver


class TemplatesPart(_Templates, Sync):
    _driver: SyncDriver


class AsyncTemplatesPart(_Templates, Async):
    _driver: AsyncDriver


class PoolsPart(_Pools, Sync):
    _driver: SyncDriver


class AsyncPoolsPart(_Pools, Async):
    _driver: AsyncDriver


class BuildsPart(_Builds, Sync):
    _driver: SyncDriver


class AsyncBuildsPart(_Builds, Async):
    _driver: AsyncDriver


class SandboxesPart(_Sandboxes, Sync):
    _driver: SyncDriver


class AsyncSandboxesPart(_Sandboxes, Async):
    _driver: AsyncDriver


class EventsPart(_Events, Sync):
    _driver: SyncDriver


class AsyncEventsPart(_Events, Async):
    _driver: AsyncDriver


class KeysPart(_Keys, Sync):
    _driver: SyncDriver


class AsyncKeysPart(_Keys, Async):
    _driver: AsyncDriver
