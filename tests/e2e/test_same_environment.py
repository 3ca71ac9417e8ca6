"""A warm and a cold sandbox of one version are the same environment, file by file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from agents.wire import ExecStart
from controlplane.agentclient.port import Door
from controlplane.agentclient.unix_client import UnixAgentClient
from controlplane.ids import SandboxId
from tests.e2e.conftest import Source
from tests.e2e.live import Live, machine_of
from warmpool import Sandbox, Warmpool

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
WARM, COLD = "same-warm", "same-cold"

# All that may differ, each with its reason. /proc, /sys and /dev are the kernel's, not the environment's.
KERNEL = ("/proc", "/sys", "/dev")
MAY_DIFFER = {
    "/etc/hostname": "names the sandbox",
    "/run/warmpool/config/sandboxd.json": "names the sandbox and holds the key of its door",
}

# Path → type, mode, owner, size, link target, SHA-256; times are left out, since no two starts share them.
LISTING = """
import hashlib, json, os, stat, sys
left_out = sys.argv[1:]
found = {}
def look(path):
    at = os.lstat(path)
    row = [stat.filemode(at.st_mode), at.st_uid, at.st_gid]
    if stat.S_ISREG(at.st_mode):
        with open(path, "rb") as file:
            row += [at.st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    elif stat.S_ISLNK(at.st_mode):
        row.append(os.readlink(path))
    found[path] = row
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in left_out]
    for name in [*names, *folders]:
        try:
            look(os.path.join(folder, name))
        except OSError as error:
            found[os.path.join(folder, name)] = [type(error).__name__]
with open("/dev/shm/listing.json", "w") as out:
    json.dump(found, out)
"""

Listing = dict[str, list[object]]


@pytest.fixture(scope="module")
def pools(shared: Live, source: Source) -> Iterator[Live]:
    setup = ["echo made > made; mkdir -m 700 private; touch private/file; ln -s made link; sleep 0.1 & wait"]
    shared.declare(WARM, min_ready=1, max_total=2, repository=source.repository, setup=setup)
    shared.filled(WARM, 1)
    with shared.api() as api:
        api.pools.put(COLD, {"template": WARM, "min_ready": 0, "max_total": 2})
    yield shared
    shared.remove(WARM)


async def listing(deployment: Live, machine: str) -> Listing:
    """Taken as root of the sandbox, which may read everything in it, and which a session can't become: so
    the control plane's own way in is taken."""
    agent = UnixAgentClient(bytes.fromhex((deployment.folder / "secret").read_text()))
    door = Door(SandboxId(machine), f"unix:{deployment.folder}/local/sandboxes/{machine}/doors/in.sock")
    try:
        argv = ["python3", "-c", LISTING, *KERNEL]
        await agent.exec_start(door, None, ExecStart(id="listing", argv=argv, user="root", timeout_s=120))
        said = [event.text async for event in agent.exec_stream(door, None, "listing", 0) if event.text]
        assert (await agent.exec_status(door, None, "listing")).code == 0, said
        data = b"".join([chunk async for chunk in agent.file_read(door, None, "/dev/shm/listing.json")])
    finally:
        await agent.close()
    found: Listing = json.loads(data)
    return found


def environment(sandbox: Sandbox) -> dict[str, str]:
    lines = sandbox.commands.run(
        "env -0 | tr '\\n\\0' ' \\n'; id; ulimit -a; cat /proc/mounts | cut -d' ' -f2-3"
    ).stdout
    return {line.partition("=")[0]: line for line in lines.splitlines()}


def test_a_warm_and_a_cold_sandbox_of_one_version_hold_the_same_files_and_variables(pools: Live) -> None:
    with pools.api() as api:
        warm, cold = attach(api)
        assert environment(warm) == environment(cold)
        one = asyncio.run(listing(pools, machine_of(warm)))
        other = asyncio.run(listing(pools, machine_of(cold)))
        warm.kill()
        cold.kill()
    assert len(one) > 5000
    assert one["/workspace/made"][0] == "-rw-r--r--"
    different = {path: (one.get(path), other.get(path)) for path in one.keys() | other.keys()}
    different = {path: rows for path, rows in different.items() if rows[0] != rows[1]}
    assert set(different) <= set(MAY_DIFFER), {path: different[path] for path in different.keys() - MAY_DIFFER.keys()}
    unread = [path for path, row in one.items() if len(row) == 1]
    assert unread == []


def attach(api: Warmpool) -> tuple[Sandbox, Sandbox]:
    warm, cold = api.attach(WARM), api.attach(COLD)
    assert (warm.start, cold.start, cold.start_reason) == ("warm", "cold", "pool_empty")
    assert warm.get_info().version == cold.get_info().version
    return warm, cold
