"""A real local runtime with the real base, its state in a short path of its own that is removed afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.ids import SandboxId, new_sandbox_id
from controlplane.model.resources import MIB, Resources
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.runtime import LocalOptions, LocalRuntime
from controlplane.runtime.port import RunningSandbox, SandboxSpec
from tests.engines import bases

RESPONDER = Path(__file__).with_name("responder.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    code: int
    text: str


async def sh(sandbox: RunningSandbox, command: str, *, within_s: float = 30) -> Answer:
    """What ``command`` (one line) prints in the sandbox, run by its root."""
    assert sandbox.door is not None
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_unix_connection(sandbox.door.removeprefix("unix:"))
        writer.write(command.encode() + b"\n")
        whole = (await reader.read()).decode()
        writer.close()
    code, _, text = whole.partition("\n")
    return Answer(code=int(code), text=text)


def as_agent(command: str) -> str:
    return f"setpriv --reuid 1000 --regid 1000 --clear-groups sh -c '{command}'"


@pytest.fixture(scope="session")
def state_dir() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = Path(tempfile.mkdtemp(prefix="wp-", dir="/tmp"))
    folder.chmod(0o711)
    agent = folder / "agent"
    agent.mkdir()
    shutil.copy(RESPONDER, agent / "run.py")
    yield folder
    shutil.rmtree(folder)


def make_runtime(state_dir: Path, many_groups: int = 16_384) -> LocalRuntime:
    async def agent() -> Path:
        return state_dir / "agent"

    return LocalRuntime(
        LocalOptions(
            state_dir=state_dir, deployment=state_dir.name, ids=IdRange(start=200_000), many_groups=many_groups
        ),
        bases(),
        agent,
    )


@pytest.fixture(scope="session")
def base_ref(state_dir: Path) -> str:
    image = asyncio.run(make_runtime(state_dir).ensure_base("debian12", print))
    return image.ref


@pytest.fixture
async def runtime(state_dir: Path, base_ref: str) -> AsyncIterator[LocalRuntime]:
    runtime = make_runtime(state_dir)
    yield runtime
    for sandbox in await runtime.list_sandboxes():
        await runtime.destroy(sandbox.id)


Create = Callable[..., Awaitable[RunningSandbox]]


@pytest.fixture
def create(runtime: LocalRuntime, base_ref: str) -> Create:
    async def make(sandbox: SandboxId | None = None, **changes: object) -> RunningSandbox:
        given = {"image": base_ref, "resources": Resources(memory_bytes=256 * MIB, pids=128), **changes}
        return await runtime.create(SandboxSpec(id=sandbox or new_sandbox_id(), **given))  # type: ignore[arg-type]

    return make
