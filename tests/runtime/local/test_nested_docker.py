"""A Docker Engine inside a sandbox, by the user-namespace recipe: it runs containers and holds their limits."""

from __future__ import annotations

import pytest

from controlplane.model.resources import GIB, MIB, Resources
from tests.runtime.local.conftest import Create, sh

pytestmark = [pytest.mark.real, pytest.mark.slow]

START = (
    "dockerd >/var/log/dockerd.log 2>&1 & "
    "for i in $(seq 150); do docker version >/dev/null 2>&1 && break; sleep 0.1; done"
)
# An image made there, of the sandbox's own shell and the libraries that it needs.
IMPORT = (
    "cd / && tar -c --dereference usr/bin/dash usr/bin/cat usr/bin/sleep usr/bin/ls usr/lib/x86_64-linux-gnu/libc.so.6 "
    "usr/lib/x86_64-linux-gnu/libselinux.so.1 usr/lib/x86_64-linux-gnu/libpcre2-8.so.0 usr/lib64/ld-linux-x86-64.so.2 "
    "--transform 's,^usr/lib64,lib64,;s,^usr/lib,lib,;s,^usr/bin/dash,bin/sh,;s,^usr/bin,bin,' | docker import - tiny"
)


@pytest.mark.parametrize("disk", [None, 2 * GIB])
async def test_an_engine_inside_runs_containers_with_their_limits(create: Create, disk: int | None) -> None:
    sandbox = await create(
        docker=True, resources=Resources(memory_bytes=1 * GIB, pids=512, cpu_cores=2, disk_bytes=disk)
    )
    started = await sh(
        sandbox, f"{START}; docker info --format '{{{{.Driver}}}} {{{{.CgroupVersion}}}}' 2>&1", within_s=60
    )
    assert started.text.startswith("overlay2"), started.text + (await sh(sandbox, "tail -20 /var/log/dockerd.log")).text
    imported = await sh(sandbox, IMPORT + " 2>&1", within_s=60)
    assert imported.code == 0, imported.text

    run = "docker run --rm --network none"
    hello = await sh(sandbox, f"{run} tiny /bin/sh -c 'echo hello from inside' 2>&1", within_s=60)
    assert hello.text == "hello from inside\n"
    limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max"
    limited = await sh(sandbox, f"{run} -m 32m tiny /bin/sh -c '{limit}' 2>&1", within_s=60)
    assert limited.text.strip().endswith(str(32 * MIB))
    bomb = "for i in 1 2 3 4 5 6 7 8 9; do sleep 2 & done; echo survived"
    held = await sh(sandbox, f"{run} --pids-limit 5 tiny /bin/sh -c '{bomb}' 2>&1", within_s=60)
    assert "fork" in held.text
    bridged = await sh(sandbox, "docker run --rm tiny /bin/sh -c 'ls /sys/class/net' 2>&1", within_s=60)
    assert "eth0" in bridged.text
