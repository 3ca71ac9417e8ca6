"""What a flow may ask of the outside, as data. A flow is a generator that yields these and receives answers.

Belongs here: the vocabulary between the logic (requests, retries, resuming: written once, without I/O) and
the two drivers that carry it out (``drivers.sync``, ``drivers.asyncio``). An effect that fails is thrown
into the flow as an exception, so that a flow handles failures, and cleans up, with plain ``try``.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Generic, TypeVar
from urllib.parse import quote

from warmpool.errors import InvalidArgumentException

T = TypeVar("T")
Param = str | list[str]
Content = bytes | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request. ``answer``: type of a 2xx body (``bytes`` raw, None nothing). ``body``: sent as JSON.

    ``repeatable``: sending it twice has the effect of once, so it may be retried after a broken
    connection. ``wait_s``: how long the server may hold it on purpose. ``patience_s``: how long to go on
    trying while the service is unavailable. ``timeout_s``: instead of the client's request timeout.
    ``final``: codes of errors that the same request would only get again. ``empty_as``: stands for an answer
    without a body.
    """

    method: str
    path: str
    answer: type[T] | None
    params: Mapping[str, Param] = field(default_factory=dict)
    body: object = None
    content: Content | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    wait_s: float = 0.0
    patience_s: float = 15.0
    timeout_s: float | None = None
    final: frozenset[str] = frozenset()
    empty_as: T | None = None
    accept: str = "application/json"

    @property
    def what(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``body`` is empty for a stream, whose bytes come by ``Read``. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Answer: Reply."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Open:
    """Start a streamed answer; a flow has one at a time. Answer: Reply, with its body if not 200."""

    call: Call[Any]
    idle_s: float


@dataclass(frozen=True, slots=True)
class Read:
    """Answer: the next bytes of the open stream, None at its end."""


@dataclass(frozen=True, slots=True)
class Shut:
    """Close the open stream, if any."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait between ``seconds`` and ``seconds × (1 + jitter)``, at random, so that clients spread out."""

    seconds: float
    jitter: float = 0.25


@dataclass(frozen=True, slots=True)
class Now:
    """Answer: monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand a value to the caller before the flow ends: an event, a piece of output, progress."""

    value: Any


Effect = Send | Open | Read | Shut | Sleep | Now | Emit
Flow = Generator[Effect, Any, T]


class Broken(Exception):
    """Thrown into a flow: the connection failed. ``sent``: the server may have seen the request. ``final``: the
    client is not to try again."""

    def __init__(self, detail: str, *, sent: bool, final: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.sent = sent
        self.final = final


class Silent(Exception):
    """Thrown into a flow: nothing came in the time allowed."""


def path_of(*segments: str) -> str:
    """``/v1/…`` with each segment quoted. Raises InvalidArgumentException for one that names no thing."""
    for segment in segments:
        if segment in ("", ".", ".."):
            raise InvalidArgumentException(f"{segment!r} is not an id or a name.", code="invalid_name")
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def params_of(**values: object) -> dict[str, Param]:
    """Query parameters: None left out, booleans as 0 and 1, whole floats without a point, lists repeated."""
    said: dict[str, Param] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            said[name] = [_param(item) for item in value]
        elif value is not None:
            said[name] = _param(value)
    return said


def _param(value: object) -> str:
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    return str(value)


def given(**values: object) -> dict[str, object]:
    """A JSON body of what was given: None left out, so that the server's own defaults apply."""
    return {name: value for name, value in values.items() if value is not None}
