"""Templates (declared environments), pools, lineages, versions and builds.

A template is what a tenant declares. A lineage is all versions of one template at one git ref; it
carries what is wanted and what was last built. A version is a built template, named by the digest of
its resolved inputs. A pool keeps sandboxes of one lineage and size ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.ids import BuildId, LineageKey, PoolKey, TemplateKey, TenantId, VersionId
from controlplane.model.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """``url`` is http(s); ``ref`` a branch, tag or full commit."""

    url: str
    ref: str = "HEAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStep:
    run: str
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """``revision`` rises by one whenever anything that a build reads changes; older sandboxes are then old.

    ``shared_with``: tenants that may attach to it, ``*`` for all; empty keeps it to its owner.
    ``build_allow``: hosts that its builds may reach (host or host:port). ``trusted``: set by an operator
    only; lets it run where a runtime cannot hold every limit. ``by_operator``: an operator put it as it is, so its
    builds may reach hosts that are not public. ``strict``: old versions are never handed out.
    """

    key: TemplateKey
    tenant: TenantId
    name: str
    base: str = "debian12"
    repository: Repository | None = None
    setup: tuple[SetupStep, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    docker: bool = False
    build_allow: tuple[str, ...] = ()
    session_ttl_s: float = 3600.0
    idle_timeout_s: float | None = None
    max_age_s: float = 86400.0
    strict: bool = False
    trusted: bool = False
    by_operator: bool = False
    shared_with: tuple[str, ...] = ()
    revision: int = 1
    created_at: float = 0.0
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Ready sandboxes of one lineage and size.

    ``min_ready``: ready sandboxes to keep. ``max_total``: live + terminating + in flight never exceed it.
    ``pinned_ready``: an operator's fixed number of ready ones, overriding min and forecast, None when unset.
    ``adhoc``: made by an attach that named a template with a ref or resources of its own; min 0, removed
    when idle. ``deleting``: drained to nothing, then removed.
    """

    key: PoolKey
    tenant: TenantId
    name: str
    template: TemplateKey
    ref: str | None = None
    resources: Resources = field(default_factory=Resources)
    min_ready: int = 1
    max_total: int = 10
    pinned_ready: int | None = None
    adhoc: bool = False
    deleting: bool = False
    uid: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What is wanted and what was last built of one template at one ref.

    ``current`` is handed out; ``current_revision`` the template revision it was built from. ``failures``
    counts consecutive failed builds; no build starts before ``next_attempt_at``; past the hard limit
    (settings) none starts until the template changes or a person asks. ``provision_failures`` likewise
    for sandboxes of the current version that did not become ready.
    """

    key: LineageKey
    template: TemplateKey
    ref: str | None = None
    current: VersionId | None = None
    current_revision: int = 0
    build: BuildId | None = None
    failures: int = 0
    provision_failures: int = 0
    next_attempt_at: float = 0.0
    last_error: str | None = None
    last_error_code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A built template. ``inputs`` are the resolved inputs whose digest is the id."""

    id: VersionId
    lineage: LineageKey
    template: TemplateKey
    tenant: TenantId
    image: str
    runtime: str
    revision: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    docker: bool = False
    commit: str | None = None
    created_at: float = 0.0
    superseded_at: float | None = None


BuildState = Literal["queued", "running", "succeeded", "failed"]
StepState = Literal["pending", "running", "succeeded", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStep:
    """One resumable step. ``log_bytes``: size of its kept log so far."""

    name: str
    command: str
    timeout_s: float
    state: StepState = "pending"
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One attempt to make a version. ``sandbox`` is the build sandbox while there is one, ``commit`` what the
    ref stood for when it was resolved."""

    id: BuildId
    lineage: LineageKey
    template: TemplateKey
    tenant: TenantId
    revision: int
    state: BuildState = "queued"
    steps: tuple[BuildStep, ...] = ()
    sandbox: str | None = None
    version: VersionId | None = None
    commit: str | None = None
    attempt: int = 1
    error: str | None = None
    error_code: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    heartbeat_at: float | None = None
