"""The life of the daemon: read the configuration, open the door, start the parts, stop in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config as ServerConfig
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import Server

from agents.sandboxd.app import HelloPage, SandboxRoutes, build_app
from agents.sandboxd.auth import Door
from agents.sandboxd.binding import Holder
from agents.sandboxd.cgroups import Delegation
from agents.sandboxd.config import Config, ConfigError, Listen, load
from agents.sandboxd.environment import CommandEnvironment, platform_layer
from agents.sandboxd.execs import Commands
from agents.sandboxd.files import Files
from agents.sandboxd.identity import credentials_of
from agents.sandboxd.kernel import become_subreaper, make_unreadable
from agents.sandboxd.problems import ProblemError
from agents.sandboxd.readiness import Readiness
from agents.sandboxd.reaper import Reaper
from agents.sandboxd.routes_exec import ExecRoutes
from agents.sandboxd.routes_files import FileRoutes
from agents.sandboxd.workspace import Tree

if TYPE_CHECKING:
    from agents.sandboxd.forwarder import Forwarder
    from agents.sandboxd.nested_docker import NestedDocker

_KEEP_ALIVE_S = 3600
_STOP_COMMANDS_S = 8.0
_CLOSE_CONNECTIONS_S = 1
_BACKLOG = 256
_REHEARSE_AFTER_S = 0.2
log = logging.getLogger("sandboxd")


def main(argv: list[str]) -> int:
    """``argv``: the configuration's path. Exit code 0 after an orderly stop, 2 for a bad configuration."""
    logging.basicConfig(level=logging.INFO, format="sandboxd %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if len(argv) != 1:
        log.error("usage: run.py CONFIG.json")
        return 2
    make_unreadable()
    os.umask(0o022)
    _open_standard_streams()
    try:
        config = load(Path(argv[0]))
        door_socket = open_door(config.listen)
        prepare_spool(Path(config.spool_dir))
    except (ConfigError, OSError) as error:
        log.error("cannot start: %s", error)
        return 2
    asyncio.run(Daemon(config, door_socket).run())
    return 0


class Daemon:
    """Everything that runs, wired. One per process."""

    def __init__(self, config: Config, door_socket: socket.socket) -> None:
        self._config = config
        self._door_socket = door_socket
        self._reaper = Reaper()
        self._spool = Path(config.spool_dir)
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then end commands, engine and connections, in this order."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        become_subreaper()
        self._reaper.start()
        self._wire()
        server = await self._serve()
        # What was loaded so far stays; neither collections nor the copies that fork makes touch it again.
        gc.collect()
        gc.freeze()
        self._start_parts()
        await stop.wait()
        log.info("stopping")
        await self._commands.stop_all(_STOP_COMMANDS_S)
        if self._docker is not None:
            await self._docker.stop()
        if self._forwarder is not None:
            self._forwarder.close()
        await server.shutdown()

    def _wire(self) -> None:
        config = self._config
        workspace = Tree(config.workspace)
        credentials = credentials_of(config.user, docker=config.docker)
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        environment = CommandEnvironment(config, shell)
        holder = Holder(config.sandbox_id, own_clock=config.own_clock)
        self._commands = Commands(
            workspace=workspace,
            spool=self._spool,
            shell=shell,
            credentials=credentials,
            environment=environment,
            delegation=Delegation.prepare(config.cgroups),
            reaper=self._reaper,
            session_env=lambda: holder.env,
        )
        self._readiness = Readiness(self._make_parts())
        self._app = build_app(
            Door(config.sandbox_id, config.key()),
            holder,
            HelloPage(config.sandbox_id),
            SandboxRoutes(holder, self._readiness, environment, self._commands),
            ExecRoutes(self._commands),
            FileRoutes(Files(workspace, credentials), config.max_file_bytes),
        )

    def _make_parts(self) -> dict[str, Callable[[], str]]:
        """The parts that readiness waits for, by name. Their modules are loaded only where they are used."""
        config = self._config
        self._forwarder: Forwarder | None = None
        self._docker: NestedDocker | None = None
        parts: dict[str, Callable[[], str]] = {"daemon": lambda: "ready"}
        if config.egress_socket is not None:
            from agents.sandboxd.forwarder import Forwarder

            self._forwarder = forwarder = Forwarder(config.proxy_port, config.egress_socket)
            parts["forwarder"] = lambda: forwarder.state
        if config.docker:
            from agents.sandboxd.nested_docker import NestedDocker

            env = {name: value for name, value in platform_layer(config).items() if name != "DOCKER_HOST"}
            self._docker = engine = NestedDocker(self._reaper, self._spool / "dockerd.log", env)
            parts["docker"] = lambda: engine.state
        return parts

    async def _serve(self) -> Server:
        """Open the door. The server's own main loop is not used: it wakes ten times a second for nothing."""
        server_config = ServerConfig(
            self._app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            interface="asgi3",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
        )
        server_config.load()
        server = Server(server_config)
        server.lifespan = server_config.lifespan_class(server_config)
        await server.startup(sockets=[self._door_socket])
        return server

    def _start_parts(self) -> None:
        if self._forwarder is not None:
            self._in_background(self._forwarder.start())
        if self._docker is not None:
            self._docker.changed = self._readiness.changed
            self._in_background(self._docker.run())
        self._in_background(self._rehearse())

    async def _rehearse(self) -> None:
        # A caller that waits for this very sandbox comes at once, and must not wait for a rehearsal as well.
        await asyncio.sleep(_REHEARSE_AFTER_S)
        try:
            await self._commands.rehearse()
        except ProblemError as error:
            log.warning("the rehearsal failed: %s", error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._part_over)

    def _part_over(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        self._readiness.changed()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a part of the daemon failed: %r", error, exc_info=error)


def open_door(listen: Listen) -> socket.socket:
    """The listening socket. One that we make may be connected to by anyone: the token is the lock."""
    if listen.fd is not None:
        door = socket.socket(fileno=listen.fd)
        door.set_inheritable(False)
    else:
        path = Path(listen.path or "")
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.bind(str(path))
        path.chmod(0o666)
    door.listen(_BACKLOG)
    door.setblocking(False)
    return door


def prepare_spool(spool: Path) -> None:
    """The daemon's folder: others may open what they are given the name of, and list nothing."""
    spool.mkdir(mode=0o711, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(spool, 0, 0)
    spool.chmod(0o711)


def _open_standard_streams() -> None:
    """With one of 0, 1, 2 closed, a later pipe would take its number and be overwritten in a child."""
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        pass
    os.close(fd)
