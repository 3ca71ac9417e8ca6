"""Benchmarks: a table, JSON, and the floor in the same run. Each section starts and stops what it needs.

attach  warm attach as a client sees it, through the API with authentication, bind included; ratio to the floor
load    open-loop Poisson attaches on the simulated runtime; errors and double assignments are counted
tick    one scheduler tick (observe and plan) over many pools and sandboxes
cold    attach to an empty pool of a built template, to the end of a first command; sandboxd's start and memory
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from deployment import Deployment, deployment
from rich.console import Console
from rich.table import Table

Json = dict[str, Any]
# Between the last start and the first measured attach: a pool that has been full for a while is what is measured.
SETTLE_S = 1.0
LIB = Path(__file__).resolve().parent


@dataclass
class Row:
    name: str
    values_ms: list[float]
    target: str = ""
    extra: Json = field(default_factory=dict)

    def summary(self) -> Json:
        ordered = sorted(self.values_ms)
        return {
            "name": self.name,
            "count": len(ordered),
            "p50_ms": round(quantile(ordered, 0.50), 3),
            "p90_ms": round(quantile(ordered, 0.90), 3),
            "p99_ms": round(quantile(ordered, 0.99), 3),
            "max_ms": round(ordered[-1], 3),
            "target": self.target,
            **self.extra,
        }


def quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class Client:
    """One keep-alive client of the API; answers are JSON."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def call(self, method: str, path: str, body: Json | None = None) -> Json:
        async with self._session.request(method, self._url + path, json=body) as answer:
            data = await answer.read()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {data.decode()[:500]}")
            return json.loads(data) if data else {}

    async def ready(self, pool: str, count: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            found = await self.call("GET", f"/v1/pools/{pool}")
            if found["counts"]["ready"] >= count:
                return
            if time.monotonic() > deadline:
                why = await self.call("GET", f"/v1/pools/{pool}/explain")
                raise RuntimeError(f"pool {pool} has {found['counts']}, wanted {count} ready: {json.dumps(why)[:1500]}")
            await asyncio.sleep(0.1)


@asynccontextmanager
async def client_of(running: Deployment, connections: int = 4) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=connections)
    headers = {"Authorization": f"Bearer {running.api_key}"}
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        yield Client(session, running.url)


async def bench_attach(runtime: str, state_dir: Path, samples: int) -> list[Row]:
    """Rounds of a full pool that is not refilled while it is measured (its maximum is its minimum)."""
    size = 20
    settings = {"WARMPOOL_RUNTIME__KIND": runtime, "WARMPOOL_API__PORT": "0"}
    attaches: list[float] = []
    steps: dict[str, list[float]] = {}
    with deployment(state_dir, name=f"bench-{runtime}", settings=settings, start_timeout_s=300) as running:
        async with client_of(running) as client:
            await client.call(
                "PUT", "/v1/templates/bench", {"base": "debian12", "resources": {"memory_bytes": 256 << 20}}
            )
            await client.call("PUT", "/v1/pools/bench", {"template": "bench", "min_ready": size, "max_total": size})
            await client.ready("bench", size, 600)
            floors = await measure_floor(running)
            while len(attaches) < samples:
                await client.ready("bench", size, 600)
                await asyncio.sleep(SETTLE_S)
                sessions = []
                for _ in range(size):
                    began = time.perf_counter()
                    session = await client.call("POST", "/v1/sessions", {"pool": "bench"})
                    attaches.append((time.perf_counter() - began) * 1000)
                    if session["start"] != "warm" or session["state"] != "attached":
                        raise RuntimeError(f"not a warm attach: {session}")
                    for step, value in (session.get("timings_ms") or {}).items():
                        steps.setdefault(step, []).append(value)
                    sessions.append(session["id"])
                for session_id in sessions:
                    await client.call("DELETE", f"/v1/sessions/{session_id}")
    floor_p50 = quantile(sorted(floors), 0.5)
    ratio = quantile(sorted(attaches), 0.5) / floor_p50
    rows = [
        Row("floor: FastAPI handler + one Lua script", floors),
        Row(f"warm attach, {runtime}", attaches, "p50 ≤ 3, p99 ≤ 15, ≤ 6 × floor", {"times_floor": round(ratio, 2)}),
    ]
    return rows + [Row(f"  of which {step}", values) for step, values in steps.items() if step != "total"]


async def measure_floor(running: Deployment, count: int = 1000) -> list[float]:
    port = free_port()
    environment = {
        **os.environ,
        "FLOOR_PORT": str(port),
        "FLOOR_REDIS_URL": f"unix://{running.state_dir / 'run' / 'valkey.sock'}",
    }
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(LIB / "floor_app.py")], env=environment
    )
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            url = f"http://127.0.0.1:{port}/floor"
            await _until_it_answers(session, url)
            values = []
            for _ in range(count):
                began = time.perf_counter()
                async with session.post(url, json={"pool": "bench"}) as answer:
                    await answer.read()
                values.append((time.perf_counter() - began) * 1000)
            return values[100:]
    finally:
        process.terminate()
        process.wait()


async def _until_it_answers(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(200):
        try:
            async with session.post(url, json={}) as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    raise RuntimeError("the floor application did not start")


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def bench_load(state_dir: Path, rate_per_s: float, seconds: float) -> list[Row]:
    """Open loop: a request's time counts from when it was due, so that a stall is seen by all who waited."""
    count = int(rate_per_s * seconds)
    size = int(count * 1.05) + 100
    settings = {
        "WARMPOOL_RUNTIME__KIND": "simulated",
        "WARMPOOL_RUNTIME__SIMULATED_START_S": "0",
        "WARMPOOL_API__PORT": "0",
        "WARMPOOL_POOL__MAX_SANDBOXES": str(size),
        "WARMPOOL_POOL__MEMORY_BUDGET_BYTES": str(size << 26),
        "WARMPOOL_POOL__MAX_STARTS_IN_FLIGHT": "512",
    }
    random.seed(1)
    latencies: list[float] = []
    errors: list[str] = []
    sandboxes: list[str] = []
    with deployment(state_dir, name="bench-load", settings=settings) as running:
        async with client_of(running, connections=256) as client:
            await client.call("PUT", "/v1/tenants/default", {"max_sessions": size})
            template = {"base": "debian12", "resources": {"memory_bytes": 64 << 20}}
            await client.call("PUT", "/v1/templates/load", template)
            await client.call("PUT", "/v1/pools/load", {"template": "load", "min_ready": size, "max_total": size})
            await client.ready("load", size, 900)

            async def one(due: float) -> None:
                try:
                    session = await client.call("POST", "/v1/sessions", {"pool": "load", "wait_s": 5})
                    latencies.append((time.perf_counter() - due) * 1000)
                    if session["start"] != "warm" or not session["sandbox"]:
                        errors.append(f"not warm: {session['start_reason']}")
                    else:
                        sandboxes.append(session["sandbox"])
                except Exception as error:
                    errors.append(repr(error))

            before = cpu_seconds(running.process.pid)
            due, tasks = time.perf_counter(), []
            for _ in range(count):
                due += random.expovariate(rate_per_s)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.append(asyncio.create_task(one(due)))
            await asyncio.gather(*tasks)
            after = cpu_seconds(running.process.pid)
    doubles = len(sandboxes) - len(set(sandboxes))
    cpu_ms = {role: round((after[role] - before.get(role, 0)) * 1000 / count, 2) for role in sorted(after)}
    extra = {
        "cpu_ms_per_attach": cpu_ms,
        "errors": len(errors),
        "double_assignments": doubles,
        "rate_per_s": rate_per_s,
        "first_errors": errors[:3],
    }
    return [Row("attach, simulated, open-loop Poisson", latencies, "p99 ≤ 30, no error, no double", extra)]


def cpu_seconds(supervisor: int) -> dict[str, float]:
    """Processor time of each role so far. Unlike times, it says the same on a busy machine."""
    found: dict[str, float] = {}
    for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        role = words[3] if "controlplane.cli" in words else Path(words[0]).name if "valkey" in words[0] else words[2]
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
        found[role] = found.get(role, 0.0) + spent
    return found


async def bench_tick(state_dir: Path) -> list[Row]:
    from bench_tick import measure

    return [
        Row(f"tick, {pools} pools, {pools * 10} sandboxes", values, target)
        for pools, values, target in await measure(state_dir)
    ]


async def bench_cold(runtime: str, state_dir: Path, samples: int) -> list[Row]:
    settings = {"WARMPOOL_RUNTIME__KIND": runtime, "WARMPOOL_API__PORT": "0"}
    total: list[float] = []
    attach: list[float] = []
    memory_kib = 0
    with deployment(state_dir, name=f"bench-{runtime}", settings=settings, start_timeout_s=300) as running:
        async with client_of(running) as client:
            await client.call(
                "PUT", "/v1/templates/bench", {"base": "debian12", "resources": {"memory_bytes": 256 << 20}}
            )
            await client.call("PUT", "/v1/pools/bench", {"template": "bench", "min_ready": 1, "max_total": 4})
            await client.ready("bench", 1, 600)
            await client.call("PUT", "/v1/pools/bench", {"template": "bench", "min_ready": 0, "max_total": 4})
            for _ in range(samples):
                await _empty(client, "bench")
                began = time.perf_counter()
                session = await client.call("POST", "/v1/sessions", {"pool": "bench", "wait_s": 60})
                attached = time.perf_counter()
                if session["start"] != "cold" or session["state"] != "attached":
                    raise RuntimeError(f"not a cold attach: {session}")
                path = f"/v1/sessions/{session['id']}/exec"
                await client.call("POST", path, {"id": "first", "argv": ["true"]})
                page = await client.call("GET", f"{path}/first/events?after=0&wait_s=10")
                while not page["complete"]:
                    page = await client.call("GET", f"{path}/first/events?after={page['next_after']}&wait_s=10")
                total.append((time.perf_counter() - began) * 1000)
                attach.append((attached - began) * 1000)
                memory_kib = max(memory_kib, await _daemon_memory(client, path))
                await client.call("DELETE", f"/v1/sessions/{session['id']}")
    return [
        Row(f"cold attach, {runtime}", attach),
        Row(f"cold start to end of first command, {runtime}", total, "≤ 400", {"sandboxd_rss_kib": memory_kib}),
    ]


async def _empty(client: Client, pool: str) -> None:
    for _ in range(600):
        counts = (await client.call("GET", f"/v1/pools/{pool}"))["counts"]
        if not sum(counts.values()):
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"pool {pool} did not empty: {counts}")


async def _daemon_memory(client: Client, path: str) -> int:
    await client.call("POST", path, {"id": "rss", "script": "awk '/VmRSS/{print $2}' /proc/1/status"})
    page = await client.call("GET", f"{path}/rss/events?after=0&wait_s=5")
    text = "".join(event.get("text") or "" for event in page["events"] if event["kind"] == "stdout")
    return int(text.strip() or 0)


def machine() -> Json:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def show(rows: Sequence[Row]) -> None:
    table = Table(title="Warmpool benchmarks")
    for column in ("", "n", "p50 ms", "p90 ms", "p99 ms", "max ms", "target", "notes"):
        table.add_column(column, justify="left" if column in ("", "target", "notes") else "right")
    for summary in (row.summary() for row in rows):
        fixed = {"name", "count", "p50_ms", "p90_ms", "p99_ms", "max_ms", "target"}
        notes = ", ".join(f"{k}={v}" for k, v in summary.items() if k not in fixed)
        figures = [str(summary[k]) for k in ("count", "p50_ms", "p90_ms", "p99_ms", "max_ms")]
        table.add_row(summary["name"], *figures, summary["target"], notes)
    Console(width=140).print(table)


async def run(arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    base = Path(arguments.state_dir)
    sections = ("tick", "load", "attach", "cold") if arguments.section == "all" else (arguments.section,)
    for section in sections:
        print(f"measuring {section} …", file=sys.stderr)
        if section == "attach":
            for runtime in arguments.runtime:
                rows += await bench_attach(runtime, base / runtime, arguments.samples)
        elif section == "load":
            rows += await bench_load(base / "load", arguments.rate, arguments.seconds)
        elif section == "tick":
            rows += await bench_tick(base / "tick")
        else:
            for runtime in arguments.runtime:
                rows += await bench_cold(runtime, base / runtime, min(arguments.samples, 20))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="?", default="all", choices=["attach", "load", "tick", "cold", "all"])
    parser.add_argument("--runtime", action="append", choices=["local", "docker"])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rate", type=float, default=200.0, help="attaches a second of the load section")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the load section")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    parser.add_argument("--state-dir", help="kept between runs, so that bases are not built again")
    arguments = parser.parse_args()
    arguments.runtime = arguments.runtime or ["local"]
    if arguments.state_dir is None:
        arguments.state_dir = str(Path(tempfile.gettempdir()) / "warmpool-bench")
    rows = asyncio.run(run(arguments))
    show(rows)
    document = {"machine": machine(), "results": [row.summary() for row in rows]}
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    else:
        print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
