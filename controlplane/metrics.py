"""The metrics of Warmpool: names, labels, meaning. Pure definitions; what needs the store is collected in ``api``.

Each process has its own ``Metrics``. Label values come from fixed sets, from route templates, or from pools
(``UNBOUNDED`` beyond a limit), never from requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


@dataclass(frozen=True, slots=True)
class Definition:
    """``shared``: the value belongs to the deployment and is read from the store, the same from every process."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    labels: tuple[str, ...]
    help: str
    shared: bool = False


ATTACH_SECONDS = Definition(
    "warmpool_attach_seconds",
    "histogram",
    ("start", "reason"),
    "Time from an attach request to its answer with an attached session, by kind of start and its reason.",
)
CLAIMS_TOTAL = Definition(
    "warmpool_claims_total",
    "counter",
    ("outcome",),
    "Claims by outcome: claimed, waiting, repeat, over_quota, no_capacity.",
)
BIND_FAILURES_TOTAL = Definition(
    "warmpool_bind_failures_total",
    "counter",
    ("code",),
    "Binds that failed, by error code; each retires a sandbox and tries the next one.",
)
HTTP_REQUESTS_TOTAL = Definition(
    "warmpool_http_requests_total",
    "counter",
    ("method", "route", "status"),
    "Requests answered, by method, route template and status.",
)
HTTP_REQUEST_SECONDS = Definition(
    "warmpool_http_request_seconds",
    "histogram",
    ("method", "route"),
    "Time from the first byte of a request to the first byte of its answer.",
)
POOL_SANDBOXES = Definition(
    "warmpool_pool_sandboxes",
    "gauge",
    ("pool", "state"),
    "Sandboxes of each pool by state: ready, building, claimed, draining, failed.",
    shared=True,
)
POOL_DESIRED = Definition(
    "warmpool_pool_desired",
    "gauge",
    ("pool",),
    "Ready sandboxes that the last plan wants of each pool.",
    shared=True,
)
POOL_WAITING = Definition(
    "warmpool_pool_waiting", "gauge", ("pool",), "Sessions waiting in each pool's queue.", shared=True
)
PROVISION_STEP_SECONDS = Definition(
    "warmpool_provision_step_seconds",
    "summary",
    ("step", "ok"),
    "Duration of provisioning steps (count and sum), by step and whether it succeeded.",
    shared=True,
)
EVENTS_TOTAL = Definition(
    "warmpool_store_total",
    "counter",
    ("what",),
    "Other totals that processes keep together in the store, by name.",
    shared=True,
)
STORE_UP = Definition(
    "warmpool_store_up", "gauge", (), "1 when the store answered for this page, else 0 and shared values are missing."
)

DEFINITIONS = (
    ATTACH_SECONDS,
    CLAIMS_TOTAL,
    BIND_FAILURES_TOTAL,
    HTTP_REQUESTS_TOTAL,
    HTTP_REQUEST_SECONDS,
    POOL_SANDBOXES,
    POOL_DESIRED,
    POOL_WAITING,
    PROVISION_STEP_SECONDS,
    EVENTS_TOTAL,
    STORE_UP,
)


def list_metrics() -> Iterator[Definition]:
    """Every metric, for the docs and for tests."""
    yield from DEFINITIONS


def provision_step_counter(step: str, ok: bool, part: Literal["sum", "count"]) -> str:
    """Name under which ``store.count`` keeps one half of a step's summary."""
    return f"provision_step_seconds_{part}:{step}:{'true' if ok else 'false'}"


class Metrics:
    """The metrics of one process, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._attach = self._histogram(ATTACH_SECONDS)
        self._claims = self._counter(CLAIMS_TOTAL)
        self._bind_failures = self._counter(BIND_FAILURES_TOTAL)
        self._requests = self._counter(HTTP_REQUESTS_TOTAL)
        self._request_seconds = self._histogram(HTTP_REQUEST_SECONDS)
        self.store_up = Gauge(STORE_UP.name, STORE_UP.help, registry=self.registry)

    def attached(self, start: str | None, reason: str | None, seconds: float) -> None:
        self._attach.labels(start or "unknown", reason or "unknown").observe(seconds)

    def claimed(self, outcome: str) -> None:
        self._claims.labels(outcome).inc()

    def bind_failed(self, code: str) -> None:
        self._bind_failures.labels(code if code in _BIND_CODES else "other").inc()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(method, route).observe(seconds)

    def _counter(self, definition: Definition) -> Counter:
        return Counter(definition.name, definition.help, definition.labels, registry=self.registry)

    def _histogram(self, definition: Definition) -> Histogram:
        return Histogram(definition.name, definition.help, definition.labels, registry=self.registry, buckets=SECONDS)


# Codes come from sandboxes, which are not trusted: others are counted together.
_BIND_CODES = frozenset(
    {
        "sandbox_unreachable",
        "sandbox_busy",
        "stream_broken",
        "already_bound",
        "protocol_mismatch",
        "door_replaced",
        "door_address_unknown",
        "sandbox_error",
    }
)
