"""The main job, once, with its figures: what a newcomer sees first. See scripts/quickstart."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import demo_repository
from deployment import Deployment, DeploymentFailed, deployment
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controlplane.settings import default_state_dir
from warmpool import Sandbox, Warmpool
from warmpool.errors import SandboxException

SCRIPTS = Path(__file__).resolve().parent.parent
POOL = demo_repository.PROJECT
GIT_PORT = 8719
WARM_ATTACHES = 20
READY = 3

console = Console(highlight=False)


def main() -> int:
    state = default_state_dir().with_name("warmpool-quickstart")
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            repository = demo_repository.make(state / "repository")
            url = stack.enter_context(git_server(repository))
            console.print(f"[bold]1[/] git repository of a real project, {POOL} {demo_repository.RELEASE}: {url}")
            console.print("[bold]2[/] warmpool up")
            running = stack.enter_context(deployment(state, name="quickstart", settings={"WARMPOOL_API__PORT": "0"}))
            client = stack.enter_context(Warmpool(api_url=running.url, api_key=running.api_key))
            figures = main_job(client, running, url)
        report(figures)
    except (DeploymentFailed, SandboxException, RuntimeError) as error:
        console.print(f"[red]It did not work:[/] {error}", markup=True)
        console.print(f"Logs: {state / 'logs'}. `.venv/bin/warmpool doctor` says what this machine can run.")
        return 1
    console.print(f"Done in {time.monotonic() - began:.0f} s; nothing is left running. Next: docs/tour.md")
    return 0


def main_job(client: Warmpool, running: Deployment, url: str) -> dict[str, float]:
    console.print("[bold]3[/] template: clone, install, seal; built once per commit and setup")
    host = url.partition("://")[2].partition("/")[0]
    client.templates.put(
        POOL,
        {
            "base": "debian12",
            "repository": {"url": url, "ref": "main"},
            "setup": list(demo_repository.SETUP),
            "resources": {"memory_bytes": "1Gi"},
            "build_allow": [host],
        },
    )
    client.pools.put(POOL, {"template": POOL, "min_ready": 0, "max_total": 8})
    client.templates.build(POOL) if not has_version(client) else None
    watch_build(client)
    figures = {"build_s": build_seconds(client)}

    console.print("[bold]4[/] cold: attach to an empty pool, run a first command")
    began = time.perf_counter()
    with attach(running) as sandbox:
        expect(sandbox, "cold")
        sandbox.commands.run("true")
        figures["cold_ms"] = (time.perf_counter() - began) * 1000

    console.print(f"[bold]5[/] pool of {READY} ready sandboxes; attach warm {WARM_ATTACHES} times")
    client.pools.put(POOL, {"template": POOL, "min_ready": READY, "max_total": 8})
    attaches, commands = warm_attaches(client, running)
    figures |= {"warm_p50_ms": quantile(attaches, 0.5), "warm_p99_ms": quantile(attaches, 0.99)}
    figures["command_p50_ms"] = quantile(commands, 0.5)

    console.print(f"[bold]6[/] the repository's own tests, in a warm sandbox: {demo_repository.TEST_COMMAND}")
    wait_ready(client, 1)
    with attach(running) as sandbox:
        result = sandbox.commands.run(
            demo_repository.TEST_COMMAND, timeout=300, on_stdout=lambda text: console.out(text, end=""), check=False
        )
        if result.exit_code != 0:
            raise RuntimeError(f"the tests ended with code {result.exit_code}:\n{result.stderr[-2000:]}")
        figures["tests_s"] = result.duration_s or 0.0
    return figures


def attach(running: Deployment) -> Sandbox:
    return Sandbox.create(POOL, api_url=running.url, api_key=running.api_key, wait=120)


def expect(sandbox: Sandbox, start: str) -> None:
    if sandbox.start != start:
        raise RuntimeError(f"the start was {sandbox.start} ({sandbox.start_reason}), not {start}")


def warm_attaches(client: Warmpool, running: Deployment) -> tuple[list[float], list[float]]:
    """Times in ms of attaches, and of the first command in each; refills go on beside them, as in real use."""
    attaches, commands = [], []
    for _ in range(WARM_ATTACHES):
        wait_ready(client, 1)
        began = time.perf_counter()
        sandbox = attach(running)
        attached = time.perf_counter()
        with sandbox:
            expect(sandbox, "warm")
            # The server's own figure leaves out what this process needs to load and connect.
            total = (sandbox.timings_ms or {}).get("total")
            attaches.append(total if total is not None else (attached - began) * 1000)
            began = time.perf_counter()
            sandbox.commands.run("true")
            commands.append((time.perf_counter() - began) * 1000)
    return attaches, commands


def has_version(client: Warmpool) -> bool:
    return bool(client.pools.get(POOL).current_version)


def watch_build(client: Warmpool, timeout_s: float = 1800) -> None:
    """Show the steps while they run; raises RuntimeError with the reason if the build fails."""
    deadline = time.monotonic() + timeout_s
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        while not has_version(client):
            builds = client.builds.list(template=POOL, limit=1)
            if builds:
                build = builds[0]
                live.update(steps_table(build, last_line(client, build.id)))
                if build.state == "failed":
                    raise RuntimeError(f"the build failed: {build.error}\n  see: warmpool build logs {build.id}")
            if time.monotonic() > deadline:
                raise RuntimeError("the build took too long")
            time.sleep(0.2)
        builds = client.builds.list(template=POOL, limit=1)
        live.update(steps_table(builds[0], "") if builds else Text("  built before"))


def steps_table(build: object, line: str) -> Table:
    table = Table.grid(padding=(0, 2))
    marks = {"succeeded": "[green]✓[/]", "running": "[yellow]…[/]", "failed": "[red]✗[/]"}
    for step in build.steps:  # type: ignore[attr-defined]
        took = ""
        if step.started_at:
            took = f"{(step.ended_at or time.time()) - step.started_at:.1f} s"
        table.add_row("  " + marks.get(step.state, " "), step.name, Text(step.command[:70], style="dim"), took)
        if step.state == "running" and line:
            table.add_row("", "", Text(line[:100], style="dim italic"), "")
    return table


def last_line(client: Warmpool, build: str) -> str:
    lines = [line for chunk in client.builds.logs(build) for line in chunk.text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def build_seconds(client: Warmpool) -> float:
    for build in client.builds.list(template=POOL, limit=20):
        if build.state == "succeeded" and build.started_at and build.ended_at:
            steps = [s for s in build.steps if s.started_at and s.ended_at and s.name not in ("resolve",)]
            return sum(s.ended_at - s.started_at for s in steps)
    return 0.0


def wait_ready(client: Warmpool, count: int, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while client.pools.get(POOL).counts.ready < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the pool did not fill: {client.pools.explain(POOL)}")
        time.sleep(0.02)


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def report(figures: dict[str, float]) -> None:
    table = Table(title="The same environment, ready in")
    table.add_column("")
    table.add_column("time", justify="right")
    table.add_row("from nothing: clone, install, seal", f"{figures['build_s']:.1f} s")
    table.add_row("cold start, to the end of a first command", f"{figures['cold_ms']:.0f} ms")
    warm = f"{figures['warm_p50_ms']:.1f} / {figures['warm_p99_ms']:.1f} ms"
    table.add_row(f"warm attach, p50 / p99 of {WARM_ATTACHES}", warm)
    table.add_row("first command after it, p50", f"{figures['command_p50_ms']:.1f} ms")
    console.print(table)


@contextlib.contextmanager
def git_server(repository: Path) -> Iterator[str]:
    """A real git server over HTTP on loopback. The same port each time, if free: the address is one of the inputs
    whose digest names a version."""
    port = GIT_PORT if port_is_free(GIT_PORT) else 0
    ready = repository.parent / "git-server.url"
    ready.unlink(missing_ok=True)
    command = [sys.executable, str(SCRIPTS / "gitserver.py"), "--root", str(repository.parent)]
    command += ["--port", str(port), "--ready-file", str(ready)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not (ready.exists() and ready.read_text().strip()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the git server did not start; is git installed?")
            time.sleep(0.02)
        yield f"{ready.read_text().strip()}/{repository.name}"
    finally:
        process.terminate()
        process.wait()


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
