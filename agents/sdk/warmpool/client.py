"""``Warmpool`` and ``AsyncWarmpool``: the whole API over one set of connections. The CLI is built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from warmpool import operations as parts
from warmpool import types as t
from warmpool.config import resolve
from warmpool.effects import Broken, Call, Flow, Reply, Send, Silent, given, path_of
from warmpool.requests import request, unreachable
from warmpool.sandbox import AsyncSandbox, Sandbox, Wish, attach_wish, connect
from warmpool.verbs import Async, Sync, verb

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from typing_extensions import Unpack

    from warmpool.drivers import AsyncDriver, SyncDriver


class _Client:
    _driver: Any

    @verb
    def whoami(self) -> Flow[t.WhoAmI]:
        """The key's tenant, role and id. Raises AuthenticationException."""
        return (yield from request(Call(method="GET", path=path_of("whoami"), answer=t.WhoAmI)))

    @verb
    def put_tenant(
        self, tenant: str, *, max_sessions: int | None = None, max_ttl_s: float | None = None
    ) -> Flow[t.Tenant]:
        """Set a tenant's limits (operators); what is left out stays."""
        body = given(max_sessions=max_sessions, max_ttl_s=max_ttl_s)
        return (yield from request(Call(method="PUT", path=path_of("tenants", tenant), answer=t.Tenant, body=body)))

    @verb
    def runtime(self) -> Flow[t.RuntimeReport]:
        """What the deployment's runtime can do and hold, as its workers reported it."""
        return (yield from request(Call(method="GET", path=path_of("runtime"), answer=t.RuntimeReport)))

    @verb
    def readiness(self) -> Flow[t.Readiness]:
        """Whether sessions can be served now, and which part is missing if not. Needs no key. An API that
        can't be reached is answered as such, not raised."""
        call = Call(method="GET", path="/readyz", answer=t.Readiness)
        try:
            reply: Reply = yield Send(call)
        except Broken as broken:
            return _not_ready(unreachable(call, broken).message)
        except Silent:
            return _not_ready("no answer in time")
        try:
            return msgspec.json.decode(reply.body, type=t.Readiness)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _not_ready(f"it answered with status {reply.status}, and not as Warmpool's API does")


def _not_ready(detail: str) -> t.Readiness:
    return t.Readiness(ready=False, parts=[t.Part(name="api", ok=False, detail=detail)])


class Warmpool(_Client, Sync):
    """Everything the API offers. Parts: sessions, templates, pools, builds, sandboxes, events, keys.

    ``patient`` False: an API that can't be reached is an error at once, not tried again for a while.
    """

    _driver: SyncDriver

    def __init__(
        self,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        request_timeout: float = 30.0,
        patient: bool = True,
    ) -> None:
        from warmpool.drivers import SyncDriver

        self.config = resolve(api_url, api_key, request_timeout=request_timeout, patient=patient)
        self._driver = SyncDriver(self.config)
        self.sessions = parts.SessionsPart(self._driver)
        self.templates = parts.TemplatesPart(self._driver)
        self.pools = parts.PoolsPart(self._driver)
        self.builds = parts.BuildsPart(self._driver)
        self.sandboxes = parts.SandboxesPart(self._driver)
        self.events = parts.EventsPart(self._driver)
        self.keys = parts.KeysPart(self._driver)

    def attach(self, pool: str | None = None, **wish: Unpack[Wish]) -> Sandbox:
        """As ``Sandbox.create``, over this client's connections."""
        session = self._driver.run(attach_wish(pool, wish), wish.get("on_progress"))
        return Sandbox(self._driver, session, owns_driver=False)

    def connect(self, session_id: str) -> Sandbox:
        """As ``Sandbox.connect``, over this client's connections."""
        return Sandbox(self._driver, self._driver.run(connect(session_id)), owns_driver=False)

    def close(self) -> None:
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncWarmpool(_Client, Async):
    """As ``Warmpool``, for asyncio."""

    _driver: AsyncDriver

    def __init__(
        self,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        request_timeout: float = 30.0,
        patient: bool = True,
    ) -> None:
        from warmpool.drivers import AsyncDriver

        self.config = resolve(api_url, api_key, request_timeout=request_timeout, patient=patient)
        self._driver = AsyncDriver(self.config)
        self.sessions = parts.AsyncSessionsPart(self._driver)
        self.templates = parts.AsyncTemplatesPart(self._driver)
        self.pools = parts.AsyncPoolsPart(self._driver)
        self.builds = parts.AsyncBuildsPart(self._driver)
        self.sandboxes = parts.AsyncSandboxesPart(self._driver)
        self.events = parts.AsyncEventsPart(self._driver)
        self.keys = parts.AsyncKeysPart(self._driver)

    async def attach(self, pool: str | None = None, **wish: Unpack[Wish]) -> AsyncSandbox:
        """As ``AsyncSandbox.create``, over this client's connections."""
        session = await self._driver.run(attach_wish(pool, wish), wish.get("on_progress"))
        return AsyncSandbox(self._driver, session, owns_driver=False)

    async def connect(self, session_id: str) -> AsyncSandbox:
        """As ``AsyncSandbox.connect``, over this client's connections."""
        return AsyncSandbox(self._driver, await self._driver.run(connect(session_id)), owns_driver=False)

    async def close(self) -> None:
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
