"""The main job, once, with its figures: what a newcomer sees first. See scripts/quickstart."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import demo_repository
from deployment import DeploymentFailed, deployment
from quickstart_display import console, heading, report, show_build

from controlplane.settings import default_state_dir
from warmpool import Warmpool
from warmpool.errors import SandboxException
from warmpool.types import Build

STATE = default_state_dir().with_name("warmpool-quickstart")
CACHE = default_state_dir() / "cache"
POOL = demo_repository.PROJECT
WARM_ATTACHES = 20
READY = 3
# The base, its packages, the sealed version, and what building them takes meanwhile.
FIRST_RUN_BYTES = 3 << 30


def main() -> int:
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(alone(STATE))
            figures = main_job(stack, STATE)
        report(figures, f"p50 / p99 of {WARM_ATTACHES}")
    except KeyboardInterrupt:
        console.print("\nInterrupted; nothing is left running.")
        return 130
    except CannotStart as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 1
    except (DeploymentFailed, SandboxException, RuntimeError, OSError) as error:
        console.print("[red]It did not work.[/]")
        said = str(error).strip()
        if isinstance(error, DeploymentFailed):
            # What `warmpool up` said on its way is not part of what went wrong.
            said = said[max(0, said.find("error: ")) :]
        console.print(said, markup=False, soft_wrap=True)
        console.print(f"Logs: {STATE / 'logs'}. What this machine can run: .venv/bin/warmpool doctor", soft_wrap=True)
        return 1
    console.print(f"Done in {time.monotonic() - began:.0f} s; nothing is left running. Next: docs/tour.md")
    return 0


class CannotStart(Exception):
    """Nothing has been tried; the text says what to do."""


@contextlib.contextmanager
def alone(state: Path) -> Iterator[None]:
    """Hold the state folder, with room in it. Raises CannotStart."""
    for folder in (state, CACHE.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o711)
    with (state / "quickstart.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(f"Another quickstart is at work on {state}: wait until it has ended.") from None
        free = shutil.disk_usage(state).free
        if free < FIRST_RUN_BYTES and not (CACHE / "bases").exists():
            raise CannotStart(
                f"{state} has {free / 2**30:.1f} GiB free, and a first run needs {FIRST_RUN_BYTES / 2**30:.0f}.\n"
                "Make room there, or name a folder on a larger disk: XDG_STATE_HOME=/path scripts/quickstart"
            )
        yield


def main_job(stack: contextlib.ExitStack, state: Path) -> dict[str, list[float]]:
    """Times in ms: attach and first command, cold and warm; and of the build."""
    project = f"{POOL} {demo_repository.RELEASE}"
    heading(1, f"A git repository of a real project: {project}")
    with console.status("fetching its source package"):
        repository = demo_repository.make(state / "repository")
    url = stack.enter_context(demo_repository.served(repository))

    heading(2, "warmpool up")
    # The base is kept where a plain `warmpool up` and the tests find it.
    settings = {"WARMPOOL_API__PORT": "0", "WARMPOOL_CACHE_DIR": str(CACHE)}
    with console.status("starting"):
        running = stack.enter_context(deployment(state, name="quickstart", settings=settings))
    stack.callback(console.print, "   [dim]stopping[/]")
    client = stack.enter_context(Warmpool(api_url=running.url, api_key=running.api_key))

    heading(3, "A template of it, built once and kept: the steps and their times")
    figures = {"build": [declare_and_build(client, url)]}

    heading(4, "A cold start: attach while no sandbox is ready, run a first command")
    client.pools.put(POOL, {"template": POOL, "min_ready": 0, "max_total": 8})
    wait_for(client, lambda: not held(client))
    attach_ms, command_ms = attach_and_run(client, "cold")
    figures |= {"cold attach": [attach_ms], "cold command": [command_ms]}

    heading(5, f"A pool that keeps {READY} sandboxes ready: attach warm {WARM_ATTACHES} times")
    client.pools.put(POOL, {"template": POOL, "min_ready": READY, "max_total": 8})
    times = warm_attaches(client)
    figures |= {"warm attach": [attach for attach, _ in times], "warm command": [command for _, command in times]}

    heading(6, f"{POOL}'s own tests in a warm sandbox")
    console.print(f"   $ {demo_repository.TEST_COMMAND}", style="dim")
    wait_for(client, lambda: client.pools.get(POOL).counts.ready > 0)
    run_tests(client)
    return figures


def declare_and_build(client: Warmpool, url: str) -> float:
    """The time of a build in ms, without the base: of one before this run where nothing has changed since.

    RuntimeError when it fails."""
    template = client.templates.put(
        POOL,
        {
            "base": "debian12",
            "repository": {"url": url, "ref": "main"},
            "setup": list(demo_repository.SETUP),
            "resources": {"memory_bytes": "1Gi"},
            "build_allow": [url.partition("://")[2].partition("/")[0]],
        },
    )
    client.pools.put(POOL, {"template": POOL, "min_ready": 0, "max_total": 8})

    def built() -> bool:
        lineage = client.pools.get(POOL).lineage
        return lineage is not None and lineage.current is not None and lineage.current_revision == template.revision

    already = built()
    ended = client.builds.list(template=POOL, limit=50)
    others = {build.id for build in ended if (build.state != "succeeded" if already else build.ended_at)}
    if not already:
        client.templates.build(POOL)
    build = show_build(client, POOL, built, others)
    # A build that finds its version made already has nothing but that to do; the one that made it tells the time.
    made = [each for each in client.builds.list(template=POOL, limit=50) if each.version == build.version]
    return max(steps_ms(each) for each in made)


def steps_ms(build: Build) -> float:
    return sum(
        (step.ended_at - step.started_at) * 1000
        for step in build.steps
        if step.name != "resolve" and step.started_at and step.ended_at
    )


def attach_and_run(client: Warmpool, start: str) -> tuple[float, float]:
    """Times in ms, as a client sees them, of an attach that has to be ``start`` and of a first command."""
    began = time.perf_counter()
    with client.attach(POOL, wait=120) as sandbox:
        attached = time.perf_counter()
        if sandbox.start != start:
            raise RuntimeError(f"the start was {sandbox.start} ({sandbox.start_reason}), not {start}")
        sandbox.commands.run("true")
        return (attached - began) * 1000, (time.perf_counter() - attached) * 1000


def warm_attaches(client: Warmpool) -> list[tuple[float, float]]:
    """Refills go on beside them, as in real use."""
    times = []
    with console.status("") as status:
        for number in range(1, WARM_ATTACHES + 1):
            status.update(f"{number} of {WARM_ATTACHES}")
            wait_for(client, lambda: client.pools.get(POOL).counts.ready > 0)
            times.append(attach_and_run(client, "warm"))
    return times


def run_tests(client: Warmpool) -> None:
    with client.attach(POOL, wait=120) as sandbox:
        result = sandbox.commands.run(demo_repository.TEST_COMMAND, timeout=300, on_stdout=write, check=False)
    if result.exit_code != 0:
        raise RuntimeError(f"the tests ended with code {result.exit_code}:\n{result.stderr[-2000:]}")


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def held(client: Warmpool) -> int:
    counts = client.pools.get(POOL).counts
    return counts.ready + counts.building + counts.claimed + counts.draining


def wait_for(client: Warmpool, condition: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the pool is not as it should be: {client.pools.explain(POOL)}")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
