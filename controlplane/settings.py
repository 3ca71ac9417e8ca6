"""Settings: one model, grouped by concern, every field with its unit and meaning.

Sources, later wins: defaults, ``warmpool.toml`` (``--config`` or WARMPOOL_CONFIG), environment
(``WARMPOOL_STORE__REDIS_URL``), flags. Only ``bootstrap`` and ``cli`` read it. docs/settings.md is
generated from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/warmpool, for root without one /var/lib/warmpool."""
    xdg = os.environ.get("XDG_STATE_HOME")
    if xdg:
        return Path(xdg) / "warmpool"
    if os.geteuid() == 0:
        return Path("/var/lib/warmpool")
    return Path.home() / ".local" / "state" / "warmpool"


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StoreSettings(_Group):
    redis_url: str | None = Field(
        default=None,
        description="Redis or Valkey to use (redis://, rediss://, unix://). Empty: an embedded Valkey in the state folder.",
    )
    connect_timeout_s: float = Field(default=1.0, gt=0, description="Longest wait for a connection to the store.")
    operation_timeout_s: float = Field(default=2.0, gt=0, description="Longest wait for one store operation.")
    max_events: int = Field(default=100_000, ge=100, description="Events kept for streams to resume from.")
    ended_session_keep_s: float = Field(
        default=86_400.0, ge=0, description="How long the record of an ended session can be read."
    )


class ApiSettings(_Group):
    host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    port: int = Field(default=8700, ge=0, le=65535, description="Port the API listens on; 0 takes a free one.")
    max_body_bytes: int = Field(default=1_048_576, ge=1024, description="Largest JSON body; larger is 413.")
    max_upload_bytes: int = Field(default=1_073_741_824, ge=1024, description="Largest file upload; larger is 413.")
    max_wait_s: float = Field(default=300.0, gt=0, description="Longest wait_s that a request may ask for.")
    default_wait_s: float = Field(default=60.0, ge=0, description="wait_s of an attach that names none.")
    max_waiting_per_pool: int = Field(
        default=1000, ge=1, description="Longest queue of a pool; beyond it attaches get 503 with Retry-After."
    )


class RuntimeSettings(_Group):
    kind: Literal["auto", "local", "docker", "simulated"] = Field(
        default="auto", description="What makes sandboxes. auto: local where it works, else docker."
    )
    id_start: int = Field(
        default=200_000,
        ge=65_536,
        description="First host uid and gid of the range that sandboxes map to (65,536 ids).",
    )
    oci_runtime: str = Field(
        default="auto", description="OCI runtime of the local runtime: auto, runc, crun or a path."
    )
    docker_host: str | None = Field(
        default=None, description="Docker Engine to use; empty: the docker package's own defaults."
    )
    cgroup_parent: str = Field(default="warmpool", description="cgroup below which sandboxes live, per controller.")
    simulated_start_s: float = Field(default=0.5, ge=0, description="Median start time of a simulated sandbox.")
    simulated_bind_s: float = Field(default=0.0005, ge=0, description="Median bind time of a simulated sandbox.")
    host_config: Literal["auto", "none"] = Field(
        default="auto",
        description="auto: builds in sandboxes use the host's extra CA bundle and its pip, npm and apt configuration; none: they use the base's own.",
    )


class PoolSettings(_Group):
    memory_budget_bytes: int | None = Field(
        default=None, gt=0, description="Memory all sandboxes together may be given; empty: 80 % of the machine's."
    )
    cpu_budget_cores: float | None = Field(
        default=None, gt=0, description="CPU all sandboxes together may be given; empty: no limit."
    )
    max_sandboxes: int = Field(default=1000, ge=1, description="Sandboxes of all pools together.")
    max_starts_in_flight: int = Field(default=4, ge=1, description="Sandboxes being started at one time.")
    max_retires_in_flight: int = Field(default=8, ge=1, description="Sandboxes being destroyed at one time.")
    max_failures: int = Field(
        default=5,
        ge=1,
        description="Consecutive failures after which a template is left alone until it changes or is retried by hand.",
    )
    backoff_base_s: float = Field(
        default=2.0, gt=0, description="Wait after a first failure; doubles with each further one."
    )
    backoff_max_s: float = Field(default=300.0, gt=0, description="Longest wait between attempts.")
    min_remaining_s: float = Field(
        default=60.0, ge=0, description="A ready sandbox closer than this to its age limit is not handed out."
    )
    start_timeout_s: float = Field(
        default=120.0, gt=0, description="A sandbox that makes no progress for this long while starting is destroyed."
    )
    adhoc_idle_s: float = Field(
        default=600.0, ge=0, description="How long the pool of a one-off attach is kept after its last use."
    )
    max_per_tenant: int = Field(
        default=1000, ge=1, description="Pools of one tenant, those of one-off attaches included."
    )
    max_templates_per_tenant: int = Field(default=500, ge=1, description="Templates of one tenant.")
    default_max_total: int = Field(default=10, ge=1, description="max_total of a pool that names none.")


class SchedulerSettings(_Group):
    lease_s: float = Field(default=5.0, gt=0, description="How long leadership lasts without renewal.")
    tick_s: float = Field(default=1.0, gt=0, description="Longest time between two plans when nothing happens.")
    reap_s: float = Field(
        default=2.0, gt=0, description="Time between two comparisons of records with what really runs."
    )


class WorkerSettings(_Group):
    processes: int = Field(default=2, ge=1, description="Worker processes for starts and retirements.")
    build_processes: int = Field(default=1, ge=1, description="Worker processes for template builds.")


class BuildSettings(_Group):
    step_timeout_s: float = Field(default=600.0, gt=0, description="Time limit of a setup command that names none.")
    max_log_bytes: int = Field(
        default=8_388_608, ge=4096, description="Kept log of one build step; beyond it the middle is cut."
    )
    keep_builds: int = Field(default=20, ge=1, description="Finished builds kept per template, with their logs.")
    package_archive: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]*\{archive\}[^\s@]*\{moment\}",
        description="Archive of old Debian packages, for those of a base that the mirrors no longer have, such as http://packages.example/{archive}/{moment}: {archive} becomes debian or debian-security, {moment} the UTC moment of the base's lock (20260131T000000Z). Empty: none.",
    )
    keep_unused_ref_s: float = Field(
        default=3600.0,
        ge=0,
        description="How long what was built of a ref that no pool names any more is kept.",
    )
    keep_superseded_s: float = Field(
        default=600.0, ge=0, description="How long the image of a superseded version without sandboxes is kept."
    )


class EgressSettings(_Group):
    control_socket: Path | None = Field(
        default=None, description="Control socket of the egress gateway; empty: in the state folder."
    )
    reachable_networks: list[str] = Field(
        default_factory=list,
        description="Networks (CIDR) that are not public and that builds may still reach when their allow-list names the host. With runtime.host_config auto, the exact addresses of the host's own package registries are added.",
    )


class Settings(BaseSettings):
    """All settings of one deployment."""

    model_config = SettingsConfigDict(
        env_prefix="WARMPOOL_",
        env_nested_delimiter="__",
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    deployment: str = Field(
        default="default",
        pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        description="Name that keeps several deployments on one host and one store apart.",
    )
    state_dir: Path = Field(
        default_factory=default_state_dir, description="Folder for state, logs, images and sockets."
    )
    cache_dir: Path | None = Field(
        default=None,
        description="Folder for downloaded packages and bases, may be shared by deployments; empty: cache/ in the state folder.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity that is logged."
    )
    store: StoreSettings = StoreSettings()
    api: ApiSettings = ApiSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    pool: PoolSettings = PoolSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    build: BuildSettings = BuildSettings()
    egress: EgressSettings = EgressSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        config = os.environ.get("WARMPOOL_CONFIG")
        toml = TomlConfigSettingsSource(settings_cls, toml_file=config) if config else None
        return (init_settings, env_settings, *([toml] if toml else []))

    @property
    def cache(self) -> Path:
        return self.cache_dir or self.state_dir / "cache"

    @property
    def egress_control(self) -> Path:
        return self.egress.control_socket or self.state_dir / "run" / "egress.sock"

    @property
    def valkey_socket(self) -> Path:
        return self.state_dir / "run" / "valkey.sock"

    @property
    def secret_file(self) -> Path:
        """Deployment secret: keys of doors and of API key hashes derive from it."""
        return self.state_dir / "secret"
