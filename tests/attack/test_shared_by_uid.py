"""What the kernel counts or guards by uid is common to all sandboxes, whose ids are the same range of the host."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from controlplane.runtime.local.runtime import LocalRuntime
from controlplane.runtime.port import RunningSandbox
from tests.runtime.local.conftest import Answer, Create, as_agent, make_runtime, sh

pytestmark = pytest.mark.real

TAKE_INOTIFY = """
import ctypes, time
libc = ctypes.CDLL(None)
taken = 0
while taken < 5000 and libc.inotify_init1(0) >= 0:
    taken += 1
print(taken, flush=True)
"""
TAKE_TIMERS = """
import ctypes, errno
libc = ctypes.CDLL(None)
timer, taken = ctypes.c_void_p(), 0
while taken < 200_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0:
    taken += 1
print(taken, flush=True)
"""
# socketcall(SYS_SOCKET, [family, SOCK_STREAM, 0]) as a 32-bit program would call it.
SOCKETCALL = """
import ctypes, struct
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
page = libc.mmap(None, 4096, 7, 0x62, -1, 0)
code = bytes.fromhex("5389f889f389d1cd805bc3")
ctypes.memmove(page, code, len(code))
call = ctypes.CFUNCTYPE(*[ctypes.c_int] * 4)(page)
for family in (40, 1):
    ctypes.memmove(page + 2048, struct.pack("III", family, 1, 0), 12)
    print(call(102, 1, page + 2048))
for number, arguments in ((359, (40, 1)), (359, (1, 1))):
    print(call(number, *arguments))
"""
KEYS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number, *arguments in ((250, 0, -3, 0), (250, 1, None), (248, b"user", b"a", b"b", 1, -3)):
    print(libc.syscall(number, *arguments), errno.errorcode[ctypes.get_errno()])
"""


async def python(sandbox: RunningSandbox, program: str, after: str = "", *, agent: bool = True) -> Answer:
    """The program as the sandbox's user; it ends after ``after``, which runs in its shell."""
    text = base64.b64encode(program.encode()).decode()
    command = f"echo {text} | base64 -d | python3 -; {after}"
    return await sh(sandbox, as_agent(command) if agent else command, within_s=60)


@pytest.mark.parametrize(("program", "most"), [(TAKE_INOTIFY, 64), (TAKE_TIMERS, 8192)])
async def test_one_sandbox_cannot_use_up_what_all_sandboxes_share(create: Create, program: str, most: int) -> None:
    taken = int((await python(await create(), program)).text)
    assert 8 <= taken <= most


async def test_a_sandbox_with_an_engine_cannot_raise_its_share(create: Create) -> None:
    sandbox = await create(docker=True)
    answer = await sh(
        sandbox, "echo 99999 >/proc/sys/user/max_inotify_instances; cat /proc/sys/user/max_inotify_instances"
    )
    assert int(answer.text.split()[-1]) <= 8192
    assert int((await python(sandbox, TAKE_INOTIFY, agent=False)).text) <= int(answer.text.split()[-1])


async def test_the_hypervisor_cannot_be_reached_by_a_32_bit_call(create: Create) -> None:
    answer = await python(await create(), SOCKETCALL)
    by_array, unix_by_array, direct, unix_direct = (int(line) for line in answer.text.split())
    assert by_array < 0 and unix_by_array < 0 and direct < 0
    assert unix_direct > 0


@pytest.mark.parametrize("docker", [False, True])
async def test_no_sandbox_reaches_a_keyring(create: Create, docker: bool) -> None:
    neighbour, sandbox = await create(docker=docker), await create(docker=docker)
    answer = await python(sandbox, KEYS, agent=False)
    assert answer.text.split()[0::2] == ["-1"] * 3
    assert set(answer.text.split()[1::2]) == ({"ENOSYS"} if docker else {"EPERM"})
    seen = (await sh(sandbox, "cat /proc/keys")).text
    assert neighbour.id not in seen and sandbox.id not in seen


async def test_a_sandbox_that_makes_control_groups_without_end_is_seen_as_lost(
    state_dir: Path, runtime: LocalRuntime, create: Create
) -> None:
    watchful = make_runtime(state_dir, many_groups=0)
    neighbour, sandbox = await create(docker=True), await create(docker=True)
    answer = await sh(sandbox, "cd /sys/fs/cgroup/memory || exit 1; seq -f g%g 4200 | xargs mkdir; ls -d g* | wc -l")
    if answer.code != 0:
        pytest.skip("version 2 holds the number of groups itself")
    assert answer.text.split()[-1] == "4200"
    lost = await watchful.inspect(sandbox.id)
    assert lost is not None and lost.state == "stopped" and "control groups" in lost.detail
    assert {found.id: found.state for found in await watchful.list_sandboxes()}[neighbour.id] == "running"
    # A host that is far from the end leaves it alone.
    assert (found := await runtime.inspect(sandbox.id)) is not None and found.state == "running"
