"""The seccomp profile of a sandbox as an OCI structure; the lists themselves are data in seccomp.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_EPERM = 1
_ENOSYS = 38
# CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET: no new namespaces.
_NAMESPACE_FLAGS = 0x7E020000
# Keys belong to a uid of the host, which all sandboxes have in common: one could read another's, or use up the
# quota of all. An engine inside takes ENOSYS for a kernel without keyrings and goes on.
_KEYS = ["add_key", "keyctl", "request_key"]
# AF_UNIX, INET, INET6, NETLINK and PACKET. What is left out is mostly reached by nobody but kernel exploits, and
# AF_VSOCK reaches the hypervisor's host past every network namespace.
_FAMILIES = (1, 2, 10, 16, 17)

# Each further one costs about 10 ms at every start of a sandbox: the rules are compiled anew each time.
_ARCHITECTURES = {
    "x86_64": ("SCMP_ARCH_X86_64", "SCMP_ARCH_X86"),
    "aarch64": ("SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"),
}
MACHINES = tuple(_ARCHITECTURES)


@cache
def _lists() -> dict[str, Any]:
    body: dict[str, Any] = json.loads(Path(__file__).with_name("seccomp.json").read_text(encoding="utf-8"))
    return body


def profile(*, docker: bool, machine: str) -> dict[str, Any]:
    """``linux.seccomp`` of an OCI bundle. ``docker``: also what an engine inside needs. ``machine``: as uname
    says it; a program of an architecture that is not listed is killed at its first call."""
    lists = _lists()
    rules = [
        {"names": lists["allow"], "action": "SCMP_ACT_ALLOW"},
        *({"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [_equals(family)]} for family in _FAMILIES),
        # Its arguments are behind a pointer, and libseccomp would let it pass with the rules above. 32-bit programs
        # have had calls of their own since Linux 4.3.
        {"names": ["socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_equals(0x0)]},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_equals(0x8)]},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_equals(0x20000)]},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_equals(0x20008)]},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_equals(0x40000)]},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_equals(0xFFFFFFFF)]},
    ]
    if docker:
        rules.append({"names": lists["nested_engine"], "action": "SCMP_ACT_ALLOW"})
        rules.append({"names": _KEYS, "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
    else:
        rules.append({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [_without(_NAMESPACE_FLAGS)]})
        # Its flags are behind a pointer and cannot be judged; with ENOSYS the C library falls back to clone.
        rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _EPERM,
        "architectures": list(_ARCHITECTURES[machine]),
        "syscalls": rules,
    }


def _equals(value: int) -> dict[str, Any]:
    return {"index": 0, "value": value, "op": "SCMP_CMP_EQ"}


def _without(flags: int) -> dict[str, Any]:
    return {"index": 0, "value": flags, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
