"""What every runtime that runs real machines holds, beside ``contract``."""

from __future__ import annotations

import asyncio
import pickle
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agents.wire import sandbox_key
from controlplane.model.resources import MIB, Resources
from controlplane.runtime.port import SandboxSpec
from tests.engines import ROOT
from tests.runtime.contract import RuntimeContract
from tests.runtime.stage import SECRET, SMALL, Setting, Stage

EAT_MEMORY = "python3 -c 'b = bytearray(1 << 30); print(len(b))'"
# Every process waits, so that none has ended before the last one was asked for.
FORK = 'python3 -c \'import subprocess\nfor n in range(400): subprocess.Popen(["sleep", "3"])\''
NETWORK = """
import os, socket
print(sorted(os.listdir('/sys/class/net')))
for where in (('192.0.2.1', 80), ('1.1.1.1', 53)):
    try:
        socket.create_connection(where, timeout=2)
        print('connected')
    except OSError as error:
        print('refused')
"""
LOOK_FOR_KEY = """
import os
for name in ('/proc/1/environ', '/proc/1/mem', '/proc/1/cwd', '/run/warmpool/config/sandboxd.json'):
    try:
        os.listdir(name) if os.path.isdir(name) else open(name).read()
        print('read', name)
    except OSError:
        pass
"""


class RealRuntimeContract(RuntimeContract):
    async def test_a_command_that_takes_too_much_memory_is_killed_and_the_sandbox_lives(self, stage: Stage) -> None:
        running = await stage.up()
        result = await stage.run(running, EAT_MEMORY)
        assert result.status.code == 137 or "Killed" in result.out, result
        assert (await stage.run(running, "echo alive")).out == "alive\n"

    async def test_a_command_that_forks_without_end_is_stopped_and_the_sandbox_lives(self, stage: Stage) -> None:
        running = await stage.up(stage.spec(resources=replace(SMALL, pids=64)))
        result = await stage.run(running, FORK, within_s=30)
        assert "Resource temporarily unavailable" in result.out
        assert (await stage.run(running, "echo alive")).out == "alive\n"

    async def test_two_busy_processes_get_no_more_than_half_a_core_together(self, stage: Stage) -> None:
        running = await stage.up(stage.spec(resources=replace(SMALL, cpu_cores=0.5)))
        busy = "timeout 2 sh -c 'while :; do :; done' & timeout 2 sh -c 'while :; do :; done'; wait; times"
        result = await stage.run(running, busy)
        assert result.status.cpu_s is not None
        assert result.status.cpu_s < 1.6, result  # two seconds of two whole cores would be 4

    async def test_a_full_disk_is_an_error_of_the_command_and_the_host_keeps_its_space(self, stage: Stage) -> None:
        if not (await stage.runtime.capabilities()).holds("disk"):
            pytest.skip("this runtime holds no disk limit, and says so")
        running = await stage.up(stage.spec(resources=replace(SMALL, disk_bytes=64 * MIB)))
        for user, path in (("agent", "/workspace/big"), ("root", "/big")):
            result = await stage.run(running, f"head -c 200000000 /dev/zero > {path}", user=user)
            assert "No space left on device" in result.out
            await stage.run(running, f"rm {path}", user=user)
        assert (await stage.run(running, "echo alive")).out == "alive\n"

    @pytest.mark.parametrize("user", ["agent", "root"])
    async def test_there_is_no_network_but_loopback(self, stage: Stage, user: str) -> None:
        running = await stage.up()
        result = await stage.run(running, f'python3 -c "{NETWORK}"', user=user)
        assert result.out == "['lo']\nrefused\nrefused\n"
        added = await stage.run(running, "ip link add dummy9 type veth 2>&1; ip link set lo down 2>&1", user=user)
        assert "dummy9" not in (await stage.run(running, "ls /sys/class/net")).out, added

    async def test_the_key_of_its_door_is_hidden_from_the_user_of_the_sandbox(self, stage: Stage) -> None:
        running = await stage.up()
        assert (await stage.run(running, f'python3 -c "{LOOK_FOR_KEY}"')).out == ""
        key = sandbox_key(SECRET, running.id).hex()
        for place in ("/proc/1/environ", "/proc/1/cmdline"):
            shown = await stage.run(running, f"tr '\\0' '\\n' < {place}; env", user="root")
            assert key not in shown.out

    async def test_root_inside_is_nobody_outside(self, stage: Stage) -> None:
        if not (await stage.runtime.capabilities()).holds("user_namespace"):
            pytest.skip("this engine has no user namespace, and says so")
        running = await stage.up()
        inside, outside, count = (await stage.run(running, "cat /proc/self/uid_map", user="root")).out.split()
        assert inside == "0"
        assert int(outside) >= 65536
        assert int(count) == 65536

    async def test_root_inside_cannot_reach_its_limits(self, stage: Stage) -> None:
        running = await stage.up()
        find = "find /sys/fs/cgroup -name release_agent -o -name 'memory.limit*' -o -name memory.max"
        for path in (await stage.run(running, find, user="root")).out.split():
            await stage.run(running, f"echo -1 > {path}; echo max > {path}", user="root")
        mounted = await stage.run(running, "mount -t cgroup none /mnt; mount -t tmpfs none /mnt; true", user="root")
        assert mounted.out.count("permission denied") == 2, mounted
        result = await stage.run(running, EAT_MEMORY, user="root")
        assert result.status.code == 137 or "Killed" in result.out, result

    async def test_a_door_out_is_a_folder_that_the_sandbox_cannot_write(self, stage: Stage) -> None:
        without = await stage.up()
        assert without.egress_socket is None
        assert "out" not in (await stage.run(without, "ls /run/warmpool", user="root")).out.split()
        running = await stage.runtime.create(stage.spec(egress=True))
        assert running.egress_socket is not None
        served = await asyncio.start_unix_server(_greet, running.egress_socket)
        try:
            Path(running.egress_socket).chmod(0o666)
            ask = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/warmpool/out/egress.sock')"
            ready = await stage.up(replace(stage.spec(running.id), egress=True))
            heard = await stage.run(ready, f'python3 -c "{ask}; print(s.recv(9).decode())"', user="root")
            assert heard.out == "hello\n"
            denied = await stage.run(ready, "rm /run/warmpool/out/egress.sock; touch /run/warmpool/out/x", user="root")
            assert denied.out.count("Read-only") == 2
        finally:
            served.close()

    async def test_sandboxes_live_on_when_the_control_plane_is_gone(self, stage: Stage) -> None:
        spec = stage.spec()
        await in_another_process(stage.setting, spec, until_line="created")
        [found] = await stage.runtime.list_sandboxes()
        running = await stage.up(spec)
        assert found.id == running.id
        assert (await stage.run(running, "echo alive")).out == "alive\n"

    @pytest.mark.slow
    async def test_a_creator_that_is_killed_anywhere_leaves_what_create_and_destroy_repair(self, stage: Stage) -> None:
        started = time.monotonic()
        first = await stage.runtime.create(stage.spec())
        usual_s = time.monotonic() - started
        await stage.runtime.destroy(first.id)
        dice = random.Random(7)
        for attempt in range(8):
            spec = stage.spec()
            await in_another_process(stage.setting, spec, kill_after_s=dice.uniform(0, usual_s))
            if attempt % 2:
                await stage.up(spec)
            await _gone(stage, spec)

    @pytest.mark.slow
    async def test_an_engine_inside_runs_containers_of_an_image_made_there_within_their_limits(
        self, stage: Stage
    ) -> None:
        if not (await stage.runtime.capabilities()).holds("nested_docker"):
            await self.refused(stage, stage.spec(docker=True))
            pytest.skip("this runtime can't nest an engine here, says so, and refuses to")
        resources = Resources(memory_bytes=768 * MIB, cpu_cores=2, pids=512)
        running = await stage.up(stage.spec(docker=True, resources=resources))
        make = (
            "mkdir -p /tmp/r/tmp && for f in $(ldd /usr/bin/dd /usr/bin/dash | grep -o '/[^ :]*' | sort -u);"
            " do cp --parents -L $f /tmp/r; done; ln -s usr/bin /tmp/r/bin; ln -s dash /tmp/r/usr/bin/sh;"
            " cp -L /usr/bin/dash /usr/bin/dd /tmp/r/usr/bin; tar -C /tmp/r -c . | docker import - tiny"
        )
        made = await stage.run(running, make)
        assert made.status.code == 0, made.out
        hello = await stage.run(running, "docker run --rm tiny sh -c 'echo from inside'")
        assert hello.out == "from inside\n"
        eat = "docker run --rm -m 32m --network none tiny dd if=/dev/zero of=/dev/null bs=200M count=1; echo $?"
        assert (await stage.run(running, eat)).out.split()[-1] == "137"
        plain = await stage.up()
        assert "docker.sock" not in (await stage.run(plain, "ls /var/run", user="root")).out


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


async def in_another_process(
    setting: Setting, spec: SandboxSpec, *, kill_after_s: float | None = None, until_line: str = "creating"
) -> None:
    """Create ``spec`` in a process that is killed ``kill_after_s`` after it began, or once it is done."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.runtime.creator"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(pickle.dumps((setting, spec)))
    process.stdin.close()
    async with asyncio.timeout(60):
        while (line := await process.stdout.readline()).strip() != until_line.encode():
            assert line, "the creating process ended early"
    if kill_after_s is not None:
        await asyncio.sleep(kill_after_s)
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
    await process.wait()


async def _gone(stage: Stage, spec: SandboxSpec) -> None:
    """Destroyed and without traces; what an engine finishes after its caller's end is destroyed again."""
    left: list[str] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        await stage.runtime.destroy(spec.id)
        left = await stage.traces(spec.id)
        if not left:
            return
    raise AssertionError(left)
