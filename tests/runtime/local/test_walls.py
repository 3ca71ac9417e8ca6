"""What root inside a sandbox cannot do: raise its limits, see the host, reach a network, take the host down."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.model.resources import MIB, Resources
from controlplane.runtime.local.runtime import LocalRuntime
from tests.runtime.local.conftest import Create, as_agent, sh

pytestmark = pytest.mark.real

RAISE_LIMITS = (
    "find /sys/fs/cgroup -name memory.limit_in_bytes -o -name memory.max -o -name pids.max -o -name cpu.max "
    "-o -name cpu.cfs_quota_us | while read -r file; do echo 999999999 >$file && echo RAISED $file; done"
)


@pytest.mark.parametrize("docker", [False, True])
async def test_root_inside_cannot_raise_its_limits(create: Create, docker: bool) -> None:
    sandbox = await create(docker=docker, resources=Resources(memory_bytes=256 * MIB, pids=64))
    answer = await sh(sandbox, f"({RAISE_LIMITS}) 2>&1; ls -d /sys/fs/cgroup/*/")
    # pids.max of the delegated directory itself may be there to see; the one that counts is above it.
    assert "RAISED" not in answer.text
    assert "/sys/fs/cgroup" in answer.text


async def test_root_inside_sees_no_directory_above_its_delegated_one(create: Create) -> None:
    sandbox = await create(docker=True)
    answer = await sh(
        sandbox,
        "mkdir /tmp/m; mount -t cgroup -o memory none /tmp/m 2>&1; ls /tmp/m; cat /proc/self/cgroup; "
        "ls /sys/fs/cgroup/*",
    )
    assert "warmpool" not in answer.text
    assert "release_agent" not in answer.text


async def test_a_child_group_can_be_made_and_limited_for_a_command(create: Create) -> None:
    sandbox = await create()
    answer = await sh(
        sandbox,
        "cd /sys/fs/cgroup; if [ -d memory ]; then cd memory; file=memory.limit_in_bytes; else file=memory.max; fi; "
        "mkdir one && sh -c 'echo 0 >one/cgroup.procs; cat /proc/self/cgroup' && "
        "echo 33554432 >one/$file && cat one/$file",
    )
    assert answer.text.splitlines()[-1] == "33554432"
    assert "/one" in answer.text


async def test_a_fork_bomb_stops_at_the_pids_limit(create: Create) -> None:
    sandbox = await create(resources=Resources(memory_bytes=256 * MIB, pids=40))
    bomb = "for i in $(seq 100); do sleep 1 & done; ls -d /proc/[0-9]* | wc -l"
    answer = await sh(sandbox, f"{bomb} 2>&1")
    assert "fork" in answer.text.lower()


async def test_too_much_memory_kills_the_command_and_nothing_else(create: Create) -> None:
    sandbox = await create(resources=Resources(memory_bytes=128 * MIB, pids=64))
    # The group of its own keeps the first process out of the kernel's choice, as sandboxd does for each command.
    eat = "python3 -c 'x = bytearray(400 << 20); print(len(x))'"
    answer = await sh(sandbox, f"echo 1000 >/proc/self/oom_score_adj; {eat}; echo ended $?")
    assert "ended 137" in answer.text
    assert (await sh(sandbox, "echo alive")).text == "alive\n"


async def test_there_is_no_network_but_loopback_and_it_is_up(create: Create) -> None:
    sandbox = await create()
    answer = await sh(sandbox, "ls /sys/class/net; ip -o addr show lo; ip route; ping -c1 -W1 127.0.0.1 2>&1 | tail -1")
    assert answer.text.splitlines()[0] == "lo"
    assert "127.0.0.1/8" in answer.text
    assert "default" not in answer.text


async def test_the_hosts_doors_are_nowhere_inside(create: Create, state_dir: Path) -> None:
    sandbox = await create(egress=True)
    answer = await sh(
        sandbox, f"find / -xdev -name in.sock; ls {state_dir} /run/warmpool /run/warmpool/*; ls -l /proc/1/fd"
    )
    assert "in.sock" not in answer.text
    assert f"cannot access '{state_dir}'" in answer.text
    written = await sh(sandbox, "for d in config out; do touch /run/warmpool/$d/x; done; touch /opt/warmpool/x 2>&1")
    assert written.text.count("Read-only file system") == 3


async def test_only_the_doors_descriptor_reaches_the_first_process(create: Create) -> None:
    sandbox = await create()
    answer = await sh(sandbox, "ls -l /proc/1/fd | grep -v socket:")
    assert ".lock" not in answer.text
    assert answer.text.count("->") <= 5


async def test_the_agent_user_cannot_read_the_doors_key(create: Create) -> None:
    sandbox = await create(door_key_hex="ab" * 32)
    assert "ab" * 32 in (await sh(sandbox, "cat /run/warmpool/config/sandboxd.json")).text
    answer = await sh(sandbox, as_agent("cat /run/warmpool/config/sandboxd.json; cat /proc/1/environ"))
    assert answer.text.count("Permission denied") == 2


async def test_root_inside_is_an_ordinary_user_outside(create: Create, runtime: LocalRuntime) -> None:
    sandbox = await create()
    answer = await sh(
        sandbox, "cat /proc/self/uid_map /proc/self/gid_map; mount -t tmpfs none /mnt 2>&1; unshare -U true 2>&1"
    )
    assert [line.split() for line in answer.text.splitlines()[:2]] == [["0", "200000", "65536"]] * 2
    assert answer.text.count("ermitted") + answer.text.count("denied") == 2


async def test_a_program_cannot_gain_rights_by_a_set_uid_bit(create: Create) -> None:
    sandbox = await create()
    answer = await sh(sandbox, "cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id; " + as_agent("/tmp/id -u"))
    assert answer.text == "1000\n"
