"""``python -m agents.egress``: the gateway as a process. The only place that builds its parts."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agents.egress.audit import JsonLinesSink
from agents.egress.control import ControlServer
from agents.egress.dial import Dialer, DirectDialer, SystemResolver, TcpConnector, parse_reachable_network
from agents.egress.limits import Limits
from agents.egress.listener import Shared
from agents.egress.registry import DoorRegistry
from agents.egress.sockets import BindError
from agents.egress.state import DoorStore, StateError
from agents.egress.upstream_proxy import ProxyDialer, proxies_from_environment

_LOOKUP_THREADS = 32
_LOG = logging.getLogger("egress")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 then, 1 when it cannot start, 2 for bad arguments."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _raise_descriptor_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_run(options))
        except (BindError, StateError, OSError, ValueError) as error:
            print(f"egress gateway cannot start: {error}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agents.egress", description="The egress gateway.")
    parser.add_argument("--control", type=Path, required=True, help="path of the control socket (mode 0600)")
    parser.add_argument("--doors-dir", type=Path, required=True, help="folder of doors without a path of their own")
    parser.add_argument("--state-dir", type=Path, help="folder of kept policies (default: CONTROL.state)")
    parser.add_argument("--log-file", type=Path, help="audit rows, one JSON line each (default: standard error)")
    parser.add_argument("--idle-s", type=float, default=Limits().idle_s, help="idle limit of a connection, seconds")
    parser.add_argument(
        "--max-connections", type=int, default=Limits().connections, help="open connections of one door"
    )
    parser.add_argument(
        "--reachable-network",
        action="append",
        default=[],
        metavar="CIDR",
        type=parse_reachable_network,
        help="non-public network that allowed names may resolve to, e.g. of a company's mirror; may be repeated",
    )
    return parser


async def _run(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    # Look-ups block a thread each; slow ones of one sandbox must leave some for the others.
    loop.set_default_executor(ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="lookup"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    limits = Limits(idle_s=options.idle_s, connections=options.max_connections)
    control: Path = options.control.absolute()
    store = DoorStore(options.state_dir or control.with_name(control.name + ".state"))
    audit = JsonLinesSink(options.log_file)
    shared = Shared(dialer=_dialer(options, limits), audit=audit, limits=limits, now=time.time)
    registry = DoorRegistry(store=store, doors_dir=options.doors_dir.absolute(), shared=shared)
    await registry.reopen()
    server = ControlServer(registry, control)
    try:
        await server.start()
        _LOG.info("serving %d doors, control socket %s", registry.health().doors, control)
        await stop.wait()
    finally:
        await server.close()
        await registry.close()
        audit.close()
        store.close()


def _dialer(options: argparse.Namespace, limits: Limits) -> Dialer:
    connector = TcpConnector()
    direct = DirectDialer(
        resolver=SystemResolver(), connector=connector, limits=limits, reachable=options.reachable_network
    )
    proxies = proxies_from_environment(os.environ)
    if not proxies.any:
        return direct
    _LOG.info("dialling through the proxies of the environment")
    return ProxyDialer(settings=proxies, direct=direct, connector=connector, limits=limits)


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


if __name__ == "__main__":
    sys.exit(main())
