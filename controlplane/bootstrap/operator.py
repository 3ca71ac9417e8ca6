"""What an operator needs before, beside and after the roles: first key, checks of the machine, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from controlplane.bases.builder import missing_tools
from controlplane.bootstrap import adapters
from controlplane.clock import SystemClock
from controlplane.configuration import deployment_secret, read_credentials, write_private
from controlplane.errors import Denied, Retryable, WarmpoolError
from controlplane.ids import TenantId
from controlplane.runtime.port import Capabilities, Runtime
from controlplane.settings import Settings
from controlplane.store.port import Store
from controlplane.tenancy.service import Caller, TenancyService

log = logging.getLogger(__name__)

_NOTE = "made by warmpool up"
_LOOK_S = 2.0
OPERATOR_TENANT = TenantId("default")


@dataclass(frozen=True, slots=True)
class Operator:
    """``api_key`` has role ops."""

    api_key: str


async def wait_for_store(settings: Settings, timeout_s: float) -> None:
    """Until the store answers and its schema is this version's; Retryable ``store_unavailable`` after that."""
    store = adapters.store(settings)
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        while True:
            try:
                await store.open()
                return
            except Retryable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.02)
    finally:
        await store.close()


async def ensure_operator(settings: Settings) -> Operator:
    """The key kept in the state folder or the credentials file if the store takes it, else a new one.

    A store that was emptied gets the kept key back, so that its holders need not change anything."""
    store = adapters.store(settings)
    try:
        tenancy = _tenancy(settings, store)
        await _restore(settings, tenancy)
        for known in (_kept_key(settings), read_credentials(settings).get("api_key")):
            if known and await _accepted(tenancy, known):
                _keep_key(settings, known)
                return Operator(known)
        _, key = await tenancy.create_key(OPERATOR_TENANT, "ops", note=_NOTE)
        _keep_key(settings, key)
        return Operator(key)
    finally:
        await store.close()


async def keep_operator(settings: Settings, store: Store, stop: asyncio.Event) -> None:
    """Until ``stop``: give the operator's key back to a store that was emptied while everything runs."""
    tenancy = _tenancy(settings, store)
    while not stop.is_set():
        try:
            await _restore(settings, tenancy)
        except WarmpoolError as error:
            log.debug("the operator's key is not looked at: %s", error.message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await stop.wait()


async def _restore(settings: Settings, tenancy: TenancyService) -> None:
    kept = _kept_key(settings)
    if kept and await tenancy.restore_key(OPERATOR_TENANT, "ops", kept, note=_NOTE):
        log.warning("the store has lost the operator's key; it was recorded again")


def _tenancy(settings: Settings, store: Store) -> TenancyService:
    return TenancyService(store, deployment_secret(settings), SystemClock())


async def _accepted(tenancy: TenancyService, key: str) -> bool:
    try:
        caller: Caller = await tenancy.authenticate(key)
    except Denied:
        return False
    return caller.role == "ops"


def _key_file(settings: Settings) -> Path:
    return settings.state_dir / "operator-key"


def _keep_key(settings: Settings, key: str) -> None:
    if _kept_key(settings) != key:
        write_private(_key_file(settings), key + "\n")


def _kept_key(settings: Settings) -> str | None:
    try:
        return _key_file(settings).read_text().strip() or None
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """``runtimes``: each real one's report. ``chosen``: the one that ``auto`` takes here. ``missing_packages``:
    Debian packages without which no base can be built. ``notes``: what of the host's settings builds do not get."""

    runtimes: list[Capabilities]
    chosen: str | None
    missing_packages: tuple[str, ...]
    notes: tuple[str, ...]


async def examine(settings: Settings) -> Examination:
    """What this machine can run and hold."""
    host = adapters.host_config(settings)
    runtimes: list[Runtime] = [adapters.local_runtime(settings, host), adapters.docker_runtime(settings, host)]
    reports = []
    for runtime in runtimes:
        reports.append(await runtime.capabilities())
        await runtime.close()
    usable = [report.runtime for report in reports if report.usable]
    return Examination(
        runtimes=reports,
        chosen=usable[0] if usable else None,
        missing_packages=missing_tools(),
        notes=host.notes,
    )


def write_api_address(path: Path, url: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, json.dumps({"url": url, "pid": os.getpid()}))


def read_api_address(path: Path) -> str | None:
    """The address that the API wrote when it began to listen, None before."""
    try:
        return str(json.loads(path.read_text())["url"])
    except (OSError, ValueError, KeyError):
        return None
