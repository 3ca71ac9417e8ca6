"""The life of a sandbox on the local runtime: made once, found again, sealed, and gone without a trace."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from controlplane.errors import Conflict, NotFound, Permanent
from controlplane.ids import new_sandbox_id
from controlplane.model.resources import MIB, Resources
from controlplane.runtime.local.runtime import LocalRuntime
from tests.runtime.local.conftest import Create, sh

pytestmark = pytest.mark.real


def traces(sandbox: str) -> list[str]:
    """Whatever on this host still bears the sandbox's id: mounts, control groups, loop devices, processes."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if sandbox in line]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/warmpool/*/{sandbox}")]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"warmpool/*/{sandbox}")]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found += [text] if sandbox in (text := backing.read_text()) else []
        except OSError:
            continue
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [str(command)] if sandbox.encode() in command.read_bytes() else []
        except OSError:
            continue
    return found


async def test_a_sandbox_answers_at_its_door_and_is_a_machine_of_its_own(create: Create) -> None:
    sandbox = await create()
    answer = await sh(sandbox, "hostname; id -u; echo $$ $PPID; ls -d /workspace /opt/warmpool")
    assert answer.code == 0
    hostname, uid, *_ = answer.text.splitlines()
    assert (hostname, uid) == (sandbox.id, "0")


async def test_creating_a_running_sandbox_again_changes_nothing(runtime: LocalRuntime, create: Create) -> None:
    first = await create(labels={"pool": "acme/demo"})
    await sh(first, "touch /workspace/mark")
    again = await create(first.id)
    assert again == first
    assert (await sh(again, "ls /workspace")).text == "mark\n"


async def test_a_sandbox_is_found_by_another_process_with_its_labels(runtime: LocalRuntime, create: Create) -> None:
    sandbox = await create(labels={"pool": "acme/demo", "version": "v-1"}, egress=True)
    [found] = await runtime.list_sandboxes()
    assert found == sandbox
    assert found.labels == {"pool": "acme/demo", "version": "v-1"}
    assert found.egress_socket is not None and Path(found.egress_socket).parent.is_dir()
    assert await runtime.inspect(sandbox.id) == found


async def test_destroy_leaves_no_trace_and_may_be_repeated(runtime: LocalRuntime, create: Create) -> None:
    sandbox = await create(resources=Resources(memory_bytes=256 * MIB, disk_bytes=64 * MIB))
    assert traces(sandbox.id)
    await runtime.destroy(sandbox.id)
    assert traces(sandbox.id) == []
    assert await runtime.inspect(sandbox.id) is None
    await runtime.destroy(sandbox.id)


async def test_a_sandbox_whose_first_process_ended_is_seen_as_stopped_and_can_be_remade(
    runtime: LocalRuntime, create: Create
) -> None:
    sandbox = await create()
    with pytest.raises((ValueError, ConnectionError)):
        await sh(sandbox, "END")
    async with asyncio.timeout(10):
        while (found := await runtime.inspect(sandbox.id)) is None or found.state == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert found.state == "stopped" and found.door is None
    assert (await create(sandbox.id)).state == "running"


async def test_a_disk_limit_holds(create: Create) -> None:
    sandbox = await create(resources=Resources(memory_bytes=256 * MIB, disk_bytes=32 * MIB))
    answer = await sh(sandbox, "head -c 64M /dev/zero >/workspace/big; echo; du -m /workspace/big | cut -f1")
    assert "No space left" in answer.text
    assert int(answer.text.split()[-1]) <= 32


async def test_an_image_that_does_not_exist_is_named(create: Create) -> None:
    with pytest.raises(NotFound, match="no-such-image"):
        await create(image="no-such-image")


async def test_a_sandbox_id_that_leaves_the_folder_is_refused(runtime: LocalRuntime) -> None:
    for bad in ("../x", "", "A", "a/b", ".gone-x"):
        with pytest.raises(Permanent):
            await runtime.destroy(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("disk", [None, 128 * MIB])
async def test_a_committed_sandbox_is_the_start_of_the_next(
    runtime: LocalRuntime, create: Create, base_ref: str, disk: int | None
) -> None:
    ref = f"v-{new_sandbox_id()}"
    built = await create(resources=Resources(memory_bytes=256 * MIB, disk_bytes=disk))
    await sh(built, "echo made >/workspace/file; chown agent /workspace/file; rm /etc/debian_version")
    image = await runtime.commit(built.id, ref)
    assert (image.ref, image.parent) == (ref, base_ref)
    assert await runtime.commit(built.id, ref) == image
    stopped = await runtime.inspect(built.id)
    assert stopped is not None and stopped.state == "stopped"
    await runtime.destroy(built.id)

    following = await create(image=ref)
    answer = await sh(following, "cat /workspace/file; stat -c %U /workspace/file; ls /etc/debian_version 2>&1")
    assert answer.text.splitlines()[:2] == ["made", "agent"] and "No such file" in answer.text
    with pytest.raises(Conflict, match="sandbox"):
        await runtime.delete_image(ref)
    await runtime.destroy(following.id)
    with pytest.raises(Conflict, match=ref):
        await runtime.delete_image(base_ref)
    await runtime.delete_image(ref)
    await runtime.delete_image(ref)
    assert ref not in [found.ref for found in await runtime.list_images()]


_CREATE_FOREVER = """
import asyncio, sys
from pathlib import Path
from controlplane.runtime.port import SandboxSpec
from tests.runtime.local.conftest import make_runtime
from controlplane.model.resources import MIB, Resources

async def main():
    state, image, sandbox = sys.argv[1:]
    runtime = make_runtime(Path(state))
    spec = SandboxSpec(id=sandbox, image=image, resources=Resources(memory_bytes=256 * MIB, disk_bytes=32 * MIB))
    print("ready", flush=True)
    while True:
        await runtime.create(spec)
        await runtime.destroy(sandbox)

asyncio.run(main())
"""


async def test_killed_at_any_moment_the_next_call_sets_things_right(
    runtime: LocalRuntime, state_dir: Path, base_ref: str, create: Create
) -> None:
    sandbox = new_sandbox_id()
    for round_number in range(12):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CREATE_FOREVER, str(state_dir), base_ref, sandbox), stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None and await child.stdout.readline() == b"ready\n"
        await asyncio.sleep(0.02 + round_number * 0.013)  # the moment of death, not a wait for something
        child.kill()
        await child.wait()
        if round_number % 2:
            await runtime.destroy(sandbox)
            assert traces(sandbox) == []
        else:
            assert (await sh(await create(sandbox), "echo well")).text == "well\n"
    await runtime.destroy(sandbox)
    assert traces(sandbox) == []


_SLOW_MKFS = """#!/bin/sh
echo begun >{folder}/begun
sleep 1
{mkfs} "$@"
touch {folder}/ended
"""


async def test_a_disk_that_a_killed_process_was_making_is_not_touched_before_it_is_done(
    runtime: LocalRuntime, state_dir: Path, base_ref: str, create: Create, tmp_path: Path
) -> None:
    slow = tmp_path / "mkfs.ext4"
    slow.write_text(_SLOW_MKFS.format(folder=tmp_path, mkfs=shutil.which("mkfs.ext4")))
    slow.chmod(0o755)
    os.mkfifo(tmp_path / "begun")
    sandbox = new_sandbox_id()
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CREATE_FOREVER, str(state_dir), base_ref, sandbox),
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await asyncio.to_thread((tmp_path / "begun").read_text) == "begun\n"
    child.kill()
    await child.wait()
    made = await create(sandbox, resources=Resources(memory_bytes=256 * MIB, disk_bytes=32 * MIB))
    assert (tmp_path / "ended").exists()
    assert (await sh(made, "echo kept >/workspace/file; cat /workspace/file")).text == "kept\n"


_COMMIT = """
import asyncio, sys
from pathlib import Path
from tests.runtime.local.conftest import make_runtime

async def main():
    state, sandbox, ref = sys.argv[1:]
    print("ready", flush=True)
    await make_runtime(Path(state)).commit(sandbox, ref)

asyncio.run(main())
"""


@pytest.mark.parametrize("disk", [None, 128 * MIB])
async def test_a_commit_cut_off_at_any_moment_is_finished_by_the_next(
    runtime: LocalRuntime, state_dir: Path, create: Create, disk: int | None
) -> None:
    for delay_s in (0.005, 0.02, 0.04, 0.08, 0.15):
        built = await create(resources=Resources(memory_bytes=256 * MIB, disk_bytes=disk))
        ref = f"v-{built.id}"
        digest = await sh(built, "head -c 48M /dev/urandom >/workspace/big; sha256sum /workspace/big")
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _COMMIT, str(state_dir), built.id, ref), stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None and await child.stdout.readline() == b"ready\n"
        await asyncio.sleep(delay_s)  # the moment of death, not a wait for something
        if child.returncode is None:
            child.kill()
        await child.wait()
        image = await runtime.commit(built.id, ref)
        await runtime.destroy(built.id)
        following = await create(image=image.ref)
        assert (await sh(following, "sha256sum /workspace/big")).text == digest.text
        await runtime.destroy(following.id)
        await runtime.delete_image(ref)
    assert [path.name for path in (state_dir / "local/images").iterdir() if path.name.startswith(".")] == []
