"""A process of its own that creates one sandbox, to be killed in the middle of it.

Reads the pickled setting and spec; prints ``creating`` right before the call, ``created`` after it.
"""

from __future__ import annotations

import asyncio
import pickle
import sys

from controlplane.runtime.agentbundle import ensure_agent_bundle
from controlplane.runtime.port import SandboxSpec
from tests.runtime.stage import Setting, open_runtime


async def main() -> None:
    setting: Setting
    spec: SandboxSpec
    setting, spec = pickle.load(sys.stdin.buffer)
    if setting.kind != "simulated":
        await ensure_agent_bundle(setting.state_dir)
    runtime = open_runtime(setting)
    print("creating", flush=True)
    await runtime.create(spec)
    print("created", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
