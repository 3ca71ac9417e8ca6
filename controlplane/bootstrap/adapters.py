"""One builder per port."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from controlplane.agentclient.dispatch import DispatchingAgent
from controlplane.agentclient.port import AgentClient
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.artifacts import FolderBuildLogs
from controlplane.bases.hostconfig import HostConfig, detect
from controlplane.bases.registries import registries
from controlplane.bases.source import BaseCache, default_images_dir
from controlplane.configuration import deployment_secret
from controlplane.egressclient.http import HttpEgressGateway
from controlplane.errors import Permanent
from controlplane.runtime import inside
from controlplane.runtime.agentbundle import ensure_agent_bundle
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.runtime import LocalOptions, LocalRuntime
from controlplane.runtime.port import Capabilities, Runtime
from controlplane.runtime.simulated import LogNormal, SimulatedAgent, SimulatedRuntime, World
from controlplane.settings import Settings
from controlplane.store.redis_store import RedisStore, StoreOptions
from controlplane.templates.steps import BuildSurroundings

log = logging.getLogger(__name__)


def store(settings: Settings) -> RedisStore:
    return RedisStore(
        store_url(settings),
        settings.deployment,
        StoreOptions(
            connect_timeout_s=settings.store.connect_timeout_s,
            operation_timeout_s=settings.store.operation_timeout_s,
            max_events=settings.store.max_events,
            ended_session_keep_s=settings.store.ended_session_keep_s,
            keep_builds=settings.build.keep_builds,
            max_pools_per_tenant=settings.pool.max_per_tenant,
            max_templates_per_tenant=settings.pool.max_templates_per_tenant,
        ),
    )


def store_url(settings: Settings) -> str:
    return settings.store.redis_url or f"unix://{quote(str(settings.valkey_socket))}"


def host_config(settings: Settings) -> HostConfig:
    # Simulated builds reach nothing and have no files.
    return detect("none" if settings.runtime.kind == "simulated" else settings.runtime.host_config)


def surroundings(host: HostConfig) -> BuildSurroundings:
    for note in host.notes:
        log.warning("builds: %s", note)
    return BuildSurroundings(
        env=host.environment(inside.CA_BUNDLE),
        allow=registries(host),
        files={path: text.encode() for path, text in host.files().items()},
    )


def local_runtime(settings: Settings, host: HostConfig) -> LocalRuntime:
    options = LocalOptions(
        state_dir=settings.state_dir,
        deployment=settings.deployment,
        ids=IdRange(start=settings.runtime.id_start),
        cgroup_parent=settings.runtime.cgroup_parent,
        oci_runtime=settings.runtime.oci_runtime,
        ca_bundle=host.ca_bundle,
    )
    return LocalRuntime(options, _bases(settings), _agent(settings))


def docker_runtime(settings: Settings, host: HostConfig) -> Runtime:
    # Imported here: most deployments have no use for the docker package, which takes a tenth of a second to load.
    from controlplane.runtime.docker import DockerOptions, DockerRuntime

    options = DockerOptions(
        state_dir=settings.state_dir,
        deployment=settings.deployment,
        base_url=settings.runtime.docker_host,
        cgroup_parent=settings.runtime.cgroup_parent,
        ca_bundle=host.ca_bundle,
    )
    return DockerRuntime(
        options, BaseCache(cache_dir=settings.cache, images_dir=default_images_dir()), _agent(settings)
    )


def simulated_runtime(settings: Settings) -> SimulatedRuntime:
    start_s = settings.runtime.simulated_start_s
    return SimulatedRuntime(deployment=settings.deployment, start_s=start_s, world=_world(settings))


def agents(settings: Settings) -> AgentClient:
    bind = LogNormal(settings.runtime.simulated_bind_s)
    return DispatchingAgent(
        {
            "unix": UnixAgentClient(deployment_secret(settings)),
            "sim": SimulatedAgent(_world(settings), bind_latency=bind),
        }
    )


async def choose_runtime(settings: Settings, host: HostConfig) -> Runtime:
    """The configured runtime; ``auto``: local where it works, else docker.

    Permanent ``runtime_not_usable`` with each one's reason and fix."""
    kind = settings.runtime.kind
    if kind == "simulated":
        return simulated_runtime(settings)
    makers: dict[str, Callable[[], Runtime]] = {
        "local": lambda: local_runtime(settings, host),
        "docker": lambda: docker_runtime(settings, host),
    }
    refused: list[Capabilities] = []
    for name in ("local", "docker") if kind == "auto" else (kind,):
        runtime = makers[name]()
        report = await runtime.capabilities()
        if report.usable:
            return runtime
        refused.append(report)
        await runtime.close()
    reasons = " ".join(f"{report.runtime}: {report.reason}" for report in refused)
    fixes = " or ".join(report.fix for report in refused if report.fix)
    raise Permanent(
        "runtime_not_usable",
        f"No runtime works here. {reasons}",
        hint=f"Fix: {fixes}. `warmpool doctor` tells more." if fixes else "`warmpool doctor` tells more.",
    )


def egress(settings: Settings) -> HttpEgressGateway:
    return HttpEgressGateway(settings.egress_control)


def build_logs(settings: Settings) -> FolderBuildLogs:
    return FolderBuildLogs(settings.state_dir / "build-logs", max_bytes=settings.build.max_log_bytes)


def _bases(settings: Settings) -> BaseCache:
    return BaseCache(
        cache_dir=settings.cache,
        images_dir=default_images_dir(),
        package_archive=settings.build.package_archive,
    )


def _agent(settings: Settings) -> Callable[[], Awaitable[Path]]:
    bundle: list[Path] = []

    async def ensure() -> Path:
        if not bundle:
            bundle.append(await ensure_agent_bundle(settings.state_dir))
        return bundle[0]

    return ensure


_WORLDS: dict[Path, World] = {}


def _world(settings: Settings) -> World:
    """One per process, so that the simulated runtime and its agent see the same sandboxes."""
    place = settings.state_dir / "simulated"
    return _WORLDS.setdefault(place, World(place))
