"""What quickstart shows: headings, a build's steps while they run, the table of figures. At most 80 columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from warmpool import Warmpool
from warmpool.types import Build, BuildStep

WIDTH = 80
MARKS = {"succeeded": "[green]✓[/]", "running": "[yellow]…[/]", "failed": "[red]✗[/]"}
# Where no terminal shows the steps as they run: how often a long one tells its last line.
TELL_EVERY_S = 10.0
TAKEN_UP_S = 60.0

console = Console(highlight=False)
if console.width > WIDTH:
    console.width = WIDTH


def heading(number: int, text: str) -> None:
    console.print(f"[bold]{number}[/]  {text}", soft_wrap=True)


def show_build(
    client: Warmpool, template: str, done: Callable[[], bool], others: Collection[str], timeout_s: float = 1800
) -> Build:
    """Show a build's steps while they run, until ``done``; the build, which has succeeded.

    ``others``: ids of builds that are not meant. RuntimeError with the reason when it fails."""
    deadline = time.monotonic() + timeout_s
    unbegun = time.monotonic() + TAKEN_UP_S
    told = _Told()
    with Live(console=console, refresh_per_second=8) as live:
        while True:
            finished = done()
            builds = client.builds.list(template=template, limit=50)
            build = next((build for build in builds if build.id not in others), None)
            if build is not None:
                line = _last_line(client, build)
                if console.is_terminal:
                    live.update(_steps(build, line))
                else:
                    told.tell(build, line)
                if build.state == "failed":
                    last = "" if line in str(build.error) else f"\nIts last line: {line}"
                    raise RuntimeError(f"The build failed: {build.error}{last}")
                if finished and build.state == "succeeded":
                    return build
            if time.monotonic() > unbegun and not (build and build.started_at):
                raise RuntimeError(f"No worker has taken up the build in {TAKEN_UP_S:.0f} s.")
            if time.monotonic() > deadline:
                raise RuntimeError("The build took too long.")
            time.sleep(0.2)


def _last_line(client: Warmpool, build: Build) -> str:
    if build.state == "succeeded":
        return ""
    lines = [line for chunk in client.builds.logs(build.id) for line in chunk.text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _steps(build: Build, line: str) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    for width in (4, 9):
        table.add_column(no_wrap=True, width=width)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(no_wrap=True, justify="right", width=8)
    for step in build.steps:
        if step.started_at:
            table.add_row("   " + MARKS.get(step.state, " "), step.name, Text(step.command, style="dim"), _took(step))
        if step.state == "running" and line:
            table.add_row("", "", Text(line, style="dim italic"), "")
    return table


def _took(step: BuildStep) -> str:
    return f"{(step.ended_at or time.time()) - step.started_at:.1f} s" if step.started_at else ""


class _Told:
    """Each step's end once, and now and then the last line of one that is long."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._last_s = time.monotonic()

    def tell(self, build: Build, line: str) -> None:
        for step in build.steps:
            if step.ended_at and step.name not in self._ended:
                self._ended.add(step.name)
                console.print(f"   {MARKS.get(step.state, ' ')}  {step.name:9} {_took(step):>8}")
                self._last_s = time.monotonic()
        running = next((step for step in build.steps if step.state == "running"), None)
        if running and time.monotonic() - self._last_s > TELL_EVERY_S:
            console.print(f"   …  {running.name:9} {_took(running):>8}  {line[: WIDTH - 27]}", markup=False)
            self._last_s = time.monotonic()


def report(figures: dict[str, list[float]], warm: str) -> None:
    """``figures``: ms, by ``cold attach``, ``cold command``, ``warm attach``, ``warm command`` and ``build``."""
    table = Table(title="One environment, two ways to start in it", title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("attach", "first command"):
        table.add_column(column, justify="right")
    table.add_row("cold start", *(f"{figures[f'cold {what}'][0]:.0f} ms" for what in ("attach", "command")))
    table.add_row(f"warm, {warm}", *(_quantiles(figures[f"warm {what}"]) for what in ("attach", "command")))
    console.print(table)
    console.print(
        f"Both skip what the build has done once: clone, install, seal in {figures['build'][0] / 1000:.1f} s."
    )


def _quantiles(values: list[float]) -> str:
    ordered = sorted(values)
    p50, p99 = (ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.5, 0.99))
    return f"{p50:.1f} / {p99:.1f} ms"
