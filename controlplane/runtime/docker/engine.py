"""Calls to a Docker Engine: blocking, typed as far as this project needs, errors as this project's.

The engine's API is idempotent in few places; the calls here are: removing what is missing is success, and a
name that is taken is told apart from a failure.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException

from controlplane.errors import Conflict, NotFound, Permanent, Retryable, WarmpoolError

_CALL_TIMEOUT_S = 60
_LONG_CALL_TIMEOUT_S = 900
_REMOVAL_DEADLINE_S = 60.0
_MAPPED_ROOT = re.compile(r"/(\d+)\.(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says of itself. ``mapped_root``: host id of a container's root, 0 without a user
    namespace. ``cgroup_driver``: cgroupfs or systemd."""

    version: str
    kernel: str
    memory_bytes: int
    user_namespace: bool
    rootless: bool
    seccomp: bool
    cgroup_driver: str
    cgroup_version: int
    memory_limit: bool
    pids_limit: bool
    cpu_quota: bool
    mapped_root: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """``state`` as the engine calls it: created, running, exited, …; ``created_at`` epoch seconds."""

    id: str
    state: str
    status: str
    labels: Mapping[str, str]
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineImage:
    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    created_at: float
    size_bytes: int


class Engine:
    """``base_url`` None: DOCKER_HOST, else the engine's usual socket. Connects at the first call.

    Every call may raise Retryable ``engine_unreachable``, ``engine_busy`` or ``disk_full``, and Permanent
    ``engine_refused`` with the engine's own words.
    """

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url
        self._client: docker.APIClient | None = None

    def facts(self) -> EngineFacts:
        with _errors("look at the engine"):
            info = self._api().info()
        options = set(info.get("SecurityOptions") or ())
        names = {part for option in options for part in option.split(",") if part.startswith("name=")}
        user_namespace = "name=userns" in names
        match = _MAPPED_ROOT.search(info.get("DockerRootDir", ""))
        if user_namespace and not match:
            raise Permanent(
                "engine_unknown_mapping",
                f"The engine remaps users, but its root folder {info.get('DockerRootDir')!r} does not tell to which.",
            )
        return EngineFacts(
            version=info.get("ServerVersion", ""),
            kernel=info.get("KernelVersion", ""),
            memory_bytes=int(info.get("MemTotal", 0)),
            user_namespace=user_namespace,
            rootless="name=rootless" in names,
            seccomp="name=seccomp" in names,
            cgroup_driver=info.get("CgroupDriver", ""),
            cgroup_version=int(info.get("CgroupVersion", "1")),
            memory_limit=bool(info.get("MemoryLimit")),
            pids_limit=bool(info.get("PidsLimit")),
            cpu_quota=bool(info.get("CpuCfsQuota")),
            mapped_root=int(match[1]) if user_namespace and match else 0,
        )

    def containers(self, labels: Mapping[str, str]) -> list[Container]:
        wanted = [f"{name}={value}" for name, value in labels.items()]
        with _errors("list containers"):
            found = self._api().containers(all=True, filters={"label": wanted})
        return [
            Container(
                id=each["Id"],
                state=each["State"],
                status=each["Status"],
                labels=each["Labels"] or {},
                created_at=float(each["Created"]),
            )
            for each in found
        ]

    def create(self, name: str, config: Mapping[str, Any]) -> str | None:
        """The new container's id, None if the name is taken."""
        try:
            with _errors("create a container"):
                made = self._api().create_container_from_config(dict(config), name)
        except NameTakenError:
            return None
        return str(made["Id"])

    def start(self, container: str) -> None:
        with _errors("start a container"):
            self._api().start(container)

    def stop(self, container: str, grace_s: int) -> None:
        with contextlib.suppress(NotFound), _errors("stop a container"):
            self._api().stop(container, timeout=grace_s)

    def remove(self, container: str) -> None:
        """Kill and remove, with its anonymous volumes; returns once it is gone."""
        deadline = time.monotonic() + _REMOVAL_DEADLINE_S
        while True:
            try:
                with contextlib.suppress(NotFound), _errors("remove a container"):
                    self._api().remove_container(container, force=True, v=True)
                return
            except NameTakenError as error:  # 409: another call is removing it
                if time.monotonic() > deadline:
                    raise Retryable(
                        "engine_busy", f"Container {container[:12]} does not go: {error.message}"
                    ) from error
                time.sleep(0.02)

    def console(self, container: str) -> str:
        """The last lines that the container's first process printed."""
        try:
            with _errors("read a container's output"):
                return bytes(self._api().logs(container, tail=5)).decode(errors="replace").strip()[-500:]
        except WarmpoolError:
            return ""

    def images(self, reference: str | None = None, labels: Mapping[str, str] | None = None) -> list[EngineImage]:
        filters: dict[str, Any] = {"label": [f"{name}={value}" for name, value in (labels or {}).items()]}
        if reference:
            filters["reference"] = reference
        with _errors("list images"):
            found = self._api().images(filters=filters)
        return [
            EngineImage(
                id=each["Id"],
                tags=tuple(tag for tag in each["RepoTags"] or () if tag != "<none>:<none>"),
                labels=each["Labels"] or {},
                created_at=float(each["Created"]),
                size_bytes=int(each["Size"]),
            )
            for each in found
        ]

    def image(self, ref: str) -> EngineImage | None:
        return next((image for image in self.images(reference=ref) if ref in image.tags), None)

    def import_image(self, tar: Path, ref: str, labels: Mapping[str, str]) -> None:
        repository, _, tag = ref.rpartition(":")
        changes = [f"LABEL {name}={value}" for name, value in labels.items()]
        with _errors("import a base"), self._patient() as api:
            api.import_image_from_file(str(tar), repository, tag, changes)

    def tag(self, image: str, ref: str) -> None:
        repository, _, tag = ref.rpartition(":")
        with _errors("tag an image"):
            self._api().tag(image, repository, tag)

    def commit(self, container: str, ref: str, labels: Mapping[str, str]) -> None:
        repository, _, tag = ref.rpartition(":")
        with _errors("commit a container"), self._patient() as api:
            api.commit(container, repository, tag, pause=False, conf={"Labels": dict(labels)})

    def remove_image(self, ref: str) -> None:
        """Raises NameTakenError while the engine says that it is in use."""
        with contextlib.suppress(NotFound), _errors("remove an image"), self._patient() as api:
            api.remove_image(ref)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _api(self) -> docker.APIClient:
        if self._client is None:
            self._client = self._connect("auto", _CALL_TIMEOUT_S)
        return self._client

    @contextlib.contextmanager
    def _patient(self) -> Iterator[docker.APIClient]:
        """A client of its own for a call that moves gigabytes: the time limit is the client's."""
        with contextlib.closing(self._connect(self._api().api_version, _LONG_CALL_TIMEOUT_S)) as client:
            yield client

    def _connect(self, version: str, timeout_s: int) -> docker.APIClient:
        where = {"base_url": self._base_url} if self._base_url else docker.utils.kwargs_from_env()
        return docker.APIClient(**where, version=version, timeout=timeout_s)


class NameTakenError(Conflict):
    """The engine answered 409: a name is taken, or a thing is busy or in use."""


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise _translated(what, error) from error
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        raise Retryable(
            "engine_unreachable",
            f"The Docker Engine could not {what}: {str(error)[:300]}.",
            after_s=2,
            hint="Check that it runs and that DOCKER_HOST or runtime.docker_host names its socket.",
        ) from error


def _translated(what: str, error: APIError) -> WarmpoolError:
    words = str(error.explanation or error)[:1000]
    if error.status_code == 404:
        return NotFound("engine_not_found", f"The engine could not {what}: {words}.")
    if error.status_code == 409:
        return NameTakenError("engine_conflict", words)
    if "no space left on device" in words.lower():
        return Retryable("disk_full", f"The engine could not {what}: its disk is full.", after_s=60, hint="Free space.")
    if "bind source path does not exist" in words.lower():
        return Permanent(
            "engine_elsewhere",
            "The Docker Engine does not see the files of this host: it runs on another one, or in another container.",
            hint="Use an engine on the same host, and run Warmpool beside it, not in a container of it.",
        )
    if error.status_code is not None and error.status_code >= 500:
        return Retryable("engine_busy", f"The engine could not {what}: {words}.", after_s=2)
    return Permanent("engine_refused", f"The engine refused to {what}: {words}.")
