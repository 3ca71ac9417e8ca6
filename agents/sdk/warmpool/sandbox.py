"""``Sandbox`` and ``AsyncSandbox``: a session, under the names that users of such clients know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

import msgspec

from warmpool.attach import Attach, attach, end_session, get_session, keep_alive
from warmpool.commands import AsyncCommands, Commands
from warmpool.config import resolve
from warmpool.effects import Call, Flow, params_of, path_of
from warmpool.errors import ConflictException, NotFoundException
from warmpool.files import AsyncFiles, Files
from warmpool.requests import request
from warmpool.types import Resources, Session
from warmpool.verbs import Async, Sync, verb

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from typing_extensions import Unpack

    from warmpool.drivers import AsyncDriver, SyncDriver

T = TypeVar("T")
Sessions = list[Session]
ENDED = ("ended",)


class Wish(TypedDict, total=False):
    """What ``create`` takes beside the pool.

    ``timeout``: seconds the session lives unless extended (None: the template's). ``idle_timeout``: seconds
    without a command after which it ends. ``wait``: longest wait for a sandbox; 0 takes a ready one or none.
    ``envs``: variables of every command. ``metadata``: labels to find it by. ``template`` with ``ref`` or
    ``resources``: a sandbox other than a pool's. ``idempotency_key``: calls with the same one give the same
    session. ``on_progress``: called with the Session while it waits.
    """

    timeout: float | None
    idle_timeout: float | None
    envs: Mapping[str, str] | None
    metadata: Mapping[str, str] | None
    wait: float
    template: str | None
    ref: str | None
    resources: Resources | Mapping[str, object] | None
    idempotency_key: str | None
    on_progress: Callable[[Session], object] | None


class Where(TypedDict, total=False):
    """Which API, and as whom; see ``warmpool.config``. ``request_timeout``: seconds to wait for an answer."""

    api_url: str | None
    api_key: str | None
    request_timeout: float


class _Sessions(msgspec.Struct):
    sessions: list[Session]


def attach_wish(pool: str | None, wish: Wish) -> Flow[Session]:
    """The flow of ``create``; emits the Session while it waits."""
    known = {**wish}
    watched = known.pop("on_progress", None) is not None
    asked = Attach(
        pool=pool,
        ttl_s=wish.get("timeout"),
        idle_timeout_s=wish.get("idle_timeout"),
        wait_s=wish.get("wait", 60.0),
        env=wish.get("envs"),
        labels=wish.get("metadata"),
        template=wish.get("template"),
        ref=wish.get("ref"),
        resources=wish.get("resources"),
        idempotency_key=wish.get("idempotency_key"),
    )
    odd = sorted(known.keys() - Wish.__annotations__.keys())
    if odd:
        raise TypeError(f"create() got unexpected arguments: {', '.join(odd)}")
    return attach(asked, watched=watched)


def list_sessions(
    *, metadata: Mapping[str, str] | None = None, state: str | None = None, limit: int = 100, tenant: str | None = None
) -> Flow[Sessions]:
    """Sessions in ``state`` (None: any) that carry all the labels of ``metadata``, newest first."""
    labels = [f"{name}={value}" for name, value in (metadata or {}).items()]
    query = params_of(state=state, label=labels or None, limit=limit, tenant=tenant)
    call = Call(method="GET", path=path_of("sessions"), answer=_Sessions, params=query)
    return (yield from request(call)).sessions


def end(session: str) -> Flow[bool]:
    """End a session; False if it is unknown or was ended before."""
    now: Session | None = None
    try:
        now = yield from request(get_session(session))
    except NotFoundException:
        return False
    yield from request(end_session(session))
    return now.state not in ENDED


def connect(session: str) -> Flow[Session]:
    """An attached session by id. Raises NotFoundException, ConflictException ``session_ended``."""
    found = yield from request(get_session(session))
    if found.state in ENDED:
        raise ConflictException(
            f"Session {session} has ended ({found.end_reason}).", code="session_ended", hint="Attach a new one."
        )
    return found


class _Sandbox:
    """What both flavours know of a session. ``start`` is ``warm`` when a ready sandbox was taken, and
    ``start_reason`` says why or why not; ``timings_ms`` has the time of each step of the attach."""

    def __init__(self, driver: Any, session: Session, *, owns_driver: bool) -> None:
        self._driver = driver
        self._owns_driver = owns_driver
        self.session = session

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def sandbox_id(self) -> str:
        """The session's id: what ``connect`` and ``kill`` take."""
        return self.session.id

    @property
    def start(self) -> str | None:
        return self.session.start

    @property
    def start_reason(self) -> str | None:
        return self.session.start_reason

    @property
    def timings_ms(self) -> dict[str, float | None]:
        return self.session.timings_ms or {}

    @verb
    def set_timeout(self, timeout: float) -> Flow[Session]:
        """The session now ends ``timeout`` seconds from now, unless extended again."""
        self.session = yield from request(keep_alive(self.id, timeout))
        return self.session

    @verb
    def get_info(self) -> Flow[Session]:
        """The session as it is now."""
        self.session = yield from request(get_session(self.id))
        return self.session

    @verb
    def is_running(self) -> Flow[bool]:
        """Whether the session holds its sandbox and commands can be run now."""
        try:
            self.session = yield from request(get_session(self.id))
        except NotFoundException:
            return False
        return self.session.state == "attached"

    @verb
    def _kill(self) -> Flow[bool]:
        return (yield from end(self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.session.pool}, {self.session.state}>"


class _ByIdOrOwn(Generic[T]):
    """``Sandbox.kill("id")`` on the class, ``sb.kill()`` on an instance."""

    def __init__(self, by_id: Callable[..., T]) -> None:
        self._by_id = by_id
        self.__doc__ = "End the session (on the class: by its id). False if it had ended or is unknown."

    def __get__(self, instance: Any, owner: type) -> Callable[..., T]:
        return self._by_id if instance is None else instance._kill


def _kill_now(session_id: str, **where: Unpack[Where]) -> bool:
    driver = _sync_driver(where)
    try:
        return driver.run(end(session_id))
    finally:
        driver.close()


async def _kill_soon(session_id: str, **where: Unpack[Where]) -> bool:
    driver = _async_driver(where)
    try:
        return await driver.run(end(session_id))
    finally:
        await driver.close()


class Sandbox(_Sandbox, Sync):
    """A session on a sandbox. As a context manager it ends the session on leaving."""

    _driver: SyncDriver
    kill = _ByIdOrOwn[bool](_kill_now)

    def __init__(self, driver: SyncDriver, session: Session, *, owns_driver: bool = True) -> None:
        super().__init__(driver, session, owns_driver=owns_driver)
        self.commands = Commands(driver, session.id)
        self.files = Files(driver, session.id)

    @classmethod
    def create(
        cls,
        pool: str | None = None,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        request_timeout: float = 30.0,
        **wish: Unpack[Wish],
    ) -> Self:
        """Attach a session to a sandbox of ``pool``, or of ``template=…``; see ``Wish``.

        Raises CapacityException (no room now), QuotaException, TimeoutException (none ready within
        ``wait``), TemplateException (it can't be built).
        """
        flow = attach_wish(pool, wish)
        driver = _sync_driver({"api_url": api_url, "api_key": api_key, "request_timeout": request_timeout})
        try:
            return cls(driver, driver.run(flow, wish.get("on_progress")))
        except BaseException:
            driver.close()
            raise

    @classmethod
    def connect(cls, session_id: str, **where: Unpack[Where]) -> Self:
        """A session attached earlier. Raises NotFoundException, ConflictException when it has ended."""
        driver = _sync_driver(where)
        try:
            return cls(driver, driver.run(connect(session_id)))
        except BaseException:
            driver.close()
            raise

    @staticmethod
    def list(
        metadata: Mapping[str, str] | None = None,
        *,
        state: str | None = "attached",
        limit: int = 100,
        **where: Unpack[Where],
    ) -> Sessions:
        """Sessions that carry all these labels; ``state`` None for those in any state."""
        driver = _sync_driver(where)
        try:
            return driver.run(list_sessions(metadata=metadata, state=state, limit=limit))
        finally:
            driver.close()

    def close(self) -> None:
        """Let go of the connection; the session lives on."""
        if self._owns_driver:
            self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._kill()
        except Exception:
            # An error on the way out must not hide the one that led here; the lease ends the session anyway.
            if error is None:
                raise
        finally:
            self.close()


class AsyncSandbox(_Sandbox, Async):
    """As ``Sandbox``, for asyncio: ``async with await AsyncSandbox.create("demo") as sb``."""

    _driver: AsyncDriver
    kill = _ByIdOrOwn[Awaitable[bool]](_kill_soon)

    def __init__(self, driver: AsyncDriver, session: Session, *, owns_driver: bool = True) -> None:
        super().__init__(driver, session, owns_driver=owns_driver)
        self.commands = AsyncCommands(driver, session.id)
        self.files = AsyncFiles(driver, session.id)

    @classmethod
    async def create(
        cls,
        pool: str | None = None,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        request_timeout: float = 30.0,
        **wish: Unpack[Wish],
    ) -> Self:
        """As ``Sandbox.create``; ``on_progress`` may be a coroutine function."""
        flow = attach_wish(pool, wish)
        driver = _async_driver({"api_url": api_url, "api_key": api_key, "request_timeout": request_timeout})
        try:
            return cls(driver, await driver.run(flow, wish.get("on_progress")))
        except BaseException:
            await driver.close()
            raise

    @classmethod
    async def connect(cls, session_id: str, **where: Unpack[Where]) -> Self:
        """As ``Sandbox.connect``."""
        driver = _async_driver(where)
        try:
            return cls(driver, await driver.run(connect(session_id)))
        except BaseException:
            await driver.close()
            raise

    @staticmethod
    async def list(
        metadata: Mapping[str, str] | None = None,
        *,
        state: str | None = "attached",
        limit: int = 100,
        **where: Unpack[Where],
    ) -> Sessions:
        """As ``Sandbox.list``."""
        driver = _async_driver(where)
        try:
            return await driver.run(list_sessions(metadata=metadata, state=state, limit=limit))
        finally:
            await driver.close()

    async def close(self) -> None:
        """Let go of the connection; the session lives on."""
        if self._owns_driver:
            await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self._kill()
        except Exception:
            # As in Sandbox: the first error is the one to see.
            if error is None:
                raise
        finally:
            await self.close()


def _sync_driver(where: Where) -> SyncDriver:
    from warmpool.drivers import SyncDriver

    return SyncDriver(resolve(**where))


def _async_driver(where: Where) -> AsyncDriver:
    from warmpool.drivers import AsyncDriver

    return AsyncDriver(resolve(**where))
