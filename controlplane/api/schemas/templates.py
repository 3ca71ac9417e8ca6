"""Templates and their builds."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ConfigDict, Field

from controlplane.api.schemas.common import In, Out, ResourcesIn, ResourcesOut, resources_out, shown_name
from controlplane.artifacts.port import LogChunk
from controlplane.ids import TenantId, template_key
from controlplane.model.resources import Resources
from controlplane.model.template import Build, Lineage, Repository, SetupStep, Template


class RepositoryIn(In):
    url: str = Field(examples=["https://git.example/demo.git"])
    ref: str = Field(default="HEAD", description="Branch, tag or commit.")


class SetupStepIn(In):
    run: str
    timeout_s: float | None = None


class TemplateIn(In):
    """A declared environment. What is left out takes its default, also when replacing."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "repository": {"url": "https://git.example/demo.git", "ref": "main"},
                    "setup": ["pip install -e .[test]", {"run": "make assets", "timeout_s": 120}],
                    "build_allow": ["git.example", "index.example", "files.example:8443"],
                    "resources": {"memory_bytes": "1Gi", "cpu_cores": 1},
                }
            ]
        },
    )

    base: str = "debian12"
    repository: RepositoryIn | None = None
    setup: list[str | SetupStepIn] = Field(default_factory=list, description="Commands, in order, run as the agent.")
    env: dict[str, str] = Field(default_factory=dict)
    resources: ResourcesIn | None = None
    docker: bool = Field(default=False, description="A Docker Engine of its own inside each sandbox.")
    build_allow: list[str] = Field(default_factory=list, description="Hosts that builds may reach.")
    session_ttl_s: float = 3600.0
    idle_timeout_s: float | None = None
    max_age_s: float = Field(default=86400.0, description="Ready sandboxes older than this are replaced.")
    strict: bool = Field(default=False, description="Never hand out a sandbox of an older version.")
    trusted: bool = Field(default=False, description="Operators only: run where a limit can't be held.")
    shared_with: list[str] = Field(default_factory=list, description="Tenants that may attach; `*` is all.")

    def template(self, tenant: TenantId, name: str, step_timeout_s: float) -> Template:
        sizes = self.resources.model_dump(exclude_none=True) if self.resources else {}
        return Template(
            key=template_key(tenant, name),
            tenant=tenant,
            name=name,
            base=self.base,
            repository=Repository(**self.repository.model_dump()) if self.repository else None,
            setup=tuple(_step(step, step_timeout_s) for step in self.setup),
            env=self.env,
            resources=Resources(**sizes),
            docker=self.docker,
            build_allow=tuple(self.build_allow),
            session_ttl_s=self.session_ttl_s,
            idle_timeout_s=self.idle_timeout_s,
            max_age_s=self.max_age_s,
            strict=self.strict,
            trusted=self.trusted,
            shared_with=tuple(self.shared_with),
        )


class BuildIn(In):
    ref: str | None = Field(default=None, description="Default: the template's own ref.")


class RepositoryOut(Out):
    url: str
    ref: str


class SetupStepOut(Out):
    run: str
    timeout_s: float


class LineageOut(Out):
    """The versions of one template at one ref."""

    key: str
    ref: str | None
    state: str = Field(description="`building`, `current`, `failed` (the last attempt did), or `missing`.")
    current: str | None = Field(description="The version that is handed out.")
    current_revision: int
    build: str | None = Field(description="The build that runs now.")
    failures: int
    provision_failures: int
    last_error: str | None
    last_error_code: str | None
    next_attempt_at: float | None


class TemplateOut(Out):
    name: str
    tenant: str
    key: str
    base: str
    repository: RepositoryOut | None
    setup: list[SetupStepOut]
    env: dict[str, str]
    resources: ResourcesOut
    docker: bool
    build_allow: list[str]
    session_ttl_s: float
    idle_timeout_s: float | None
    max_age_s: float
    strict: bool
    trusted: bool
    shared_with: list[str]
    revision: int
    created_at: float
    updated_at: float
    lineages: list[LineageOut]


class TemplatesOut(Out):
    templates: list[TemplateOut]


class BuildAskedOut(Out):
    lineage: LineageOut


class BuildStepOut(Out):
    name: str
    state: str
    command: str
    timeout_s: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    error: str | None


class BuildOut(Out):
    id: str
    template: str
    lineage: str
    tenant: str
    revision: int
    state: str
    steps: list[BuildStepOut]
    sandbox: str | None
    version: str | None
    commit: str | None
    attempt: int
    error: str | None
    error_code: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None


class BuildsOut(Out):
    builds: list[BuildOut]


class LogChunkOut(Out):
    step: str
    offset: int = Field(description="Of the text, in bytes. Later than asked for where the middle was cut.")
    text: str


class LogsOut(Out):
    build: str
    state: str
    chunks: list[LogChunkOut]
    next: dict[str, int] = Field(description="Per step, the offset to ask for next.")
    complete: bool = Field(description="Nothing will follow.")


def lineage_out(lineage: Lineage) -> LineageOut:
    failed = lineage.failures > 0 or lineage.provision_failures > 0
    state = "building" if lineage.build else "failed" if failed else "current" if lineage.current else "missing"
    return LineageOut(
        key=lineage.key,
        ref=lineage.ref,
        state=state,
        current=lineage.current,
        current_revision=lineage.current_revision,
        build=lineage.build,
        failures=lineage.failures,
        provision_failures=lineage.provision_failures,
        last_error=lineage.last_error,
        last_error_code=lineage.last_error_code,
        next_attempt_at=lineage.next_attempt_at or None,
    )


def template_out(template: Template, lineages: Sequence[Lineage], reader: TenantId) -> TemplateOut:
    repository = template.repository
    return TemplateOut(
        name=shown_name(template.key, reader),
        tenant=template.tenant,
        key=template.key,
        base=template.base,
        repository=RepositoryOut(url=repository.url, ref=repository.ref) if repository else None,
        setup=[SetupStepOut(run=step.run, timeout_s=step.timeout_s) for step in template.setup],
        env=dict(template.env),
        resources=resources_out(template.resources),
        docker=template.docker,
        build_allow=list(template.build_allow),
        session_ttl_s=template.session_ttl_s,
        idle_timeout_s=template.idle_timeout_s,
        max_age_s=template.max_age_s,
        strict=template.strict,
        trusted=template.trusted,
        shared_with=list(template.shared_with),
        revision=template.revision,
        created_at=template.created_at,
        updated_at=template.updated_at,
        lineages=[lineage_out(lineage) for lineage in lineages],
    )


def build_out(build: Build, reader: TenantId) -> BuildOut:
    return BuildOut(
        id=build.id,
        template=shown_name(build.template, reader),
        lineage=build.lineage,
        tenant=build.tenant,
        revision=build.revision,
        state=build.state,
        steps=[
            BuildStepOut(
                name=step.name,
                state=step.state,
                command=step.command,
                timeout_s=step.timeout_s,
                started_at=step.started_at,
                ended_at=step.ended_at,
                exit_code=step.exit_code,
                error=step.error,
            )
            for step in build.steps
        ],
        sandbox=build.sandbox,
        version=build.version,
        commit=build.commit,
        attempt=build.attempt,
        error=build.error,
        error_code=build.error_code,
        created_at=build.created_at,
        started_at=build.started_at,
        ended_at=build.ended_at,
    )


def chunk_out(chunk: LogChunk) -> LogChunkOut:
    return LogChunkOut(step=chunk.step, offset=chunk.offset, text=chunk.text)


def _step(step: str | SetupStepIn, default_timeout_s: float) -> SetupStep:
    if isinstance(step, str):
        return SetupStep(run=step, timeout_s=default_timeout_s)
    return SetupStep(run=step.run, timeout_s=default_timeout_s if step.timeout_s is None else step.timeout_s)
