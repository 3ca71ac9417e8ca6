"""The steps of one build, in the sandbox made for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.wire import ExecStart, SignalRequest, sandbox_key
from agents.wire.egress import DoorSpec
from controlplane.agentclient.port import AgentClient, Door
from controlplane.agentclient.readiness import until_ready
from controlplane.egressclient.port import EgressGateway
from controlplane.errors import NotFound, Permanent, WarmpoolError
from controlplane.ids import SandboxId
from controlplane.model.template import Template
from controlplane.retrying import retried
from controlplane.runtime.port import Image, RunningSandbox, Runtime, SandboxSpec
from controlplane.templates.checks import check_public_hosts
from controlplane.templates.execution import CommandResult, check_result, run_logged
from controlplane.templates.inputs import commit_of, is_commit, repository_host, wanted_ref
from controlplane.templates.record import LiveBuild

# A repository is never inside the sandbox, also when its server is on the host's loopback.
_ALWAYS_PROXIED = ("env", "-u", "NO_PROXY", "-u", "no_proxy")
_WRITE_FILE = 'mkdir -p "$(dirname "$1")" && cat > "$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSurroundings:
    """What the host's network needs of every build. ``env``: platform variables. ``allow``: ``host:port`` that
    these send a build to. ``files``: absolute path → content, written as root before anything else runs."""

    env: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


class BuildSandbox:
    """The sandbox of one attempt, and the commands that run in it. Every call may be repeated."""

    def __init__(
        self,
        live: LiveBuild,
        template: Template,
        *,
        runtime: Runtime,
        agents: AgentClient,
        egress: EgressGateway | None,
        surroundings: BuildSurroundings,
        deployment: str,
        secret: bytes,
        start_timeout_s: float,
    ) -> None:
        self._live = live
        self._template = template
        self._runtime = runtime
        self._agents = agents
        self._egress = egress
        self._surroundings = surroundings
        self._deployment = deployment
        self._secret = secret
        self._start_timeout_s = start_timeout_s
        self._door: Door | None = None

    @property
    def id(self) -> SandboxId:
        assert self._live.build.sandbox is not None
        return SandboxId(self._live.build.sandbox)

    async def start(self, image: Image) -> None:
        """Make it, open its way out, and wait until it is ready; found running, it is taken as it is."""
        spec = self._spec(image)
        running = await retried(
            lambda: self._runtime.create(spec), within_s=self._start_timeout_s, what="Creating the build sandbox"
        )
        await self.attach(running)
        assert self._door is not None
        await until_ready(self._agents, self._door, self._start_timeout_s, self._check_alive)
        await self._write_files()

    async def attach(self, running: RunningSandbox) -> None:
        """Take up a sandbox that runs: its door in, and its door out opened (again)."""
        if running.door is None:
            raise Permanent("no_door", f"The build sandbox has no door: {running.detail or running.state}.")
        self._door = Door(self.id, running.door)
        if running.egress_socket is None:
            return
        if self._egress is None:
            raise Permanent("no_egress_gateway", "Builds need the egress gateway, and none is configured.")
        egress, spec = self._egress, self._door_spec(running.egress_socket)
        await retried(lambda: egress.put_door(self.id, spec), within_s=30.0, what="Opening the way out")

    async def commit_id(self, *, within_s: float) -> str | None:
        """The commit that the lineage's ref stands for now, None without a repository."""
        repository = self._template.repository
        if repository is None:
            return None
        ref = wanted_ref(self._template, self._live.build.lineage)
        if is_commit(ref):
            return ref
        argv = ["git", "ls-remote", "--", repository.url, ref, f"{ref}^{{}}"]
        result = await self.run("resolve", "ls-remote", argv, within_s=within_s)
        check_result(
            result, "Asking the repository for its refs", "repository", within_s, hint=await self.denied_hint()
        )
        return commit_of(result.stdout, ref)

    async def clone(self, commit: str, *, within_s: float) -> None:
        """The commit checked out in the workspace, with the remote configured; only that commit where the
        server gives single commits, else the whole history."""
        repository = self._template.repository
        assert repository is not None
        for name, argv in (
            ("init", ["git", "init", "-q", "."]),
            ("url", ["git", "config", "remote.origin.url", repository.url]),
            ("refs", ["git", "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"]),
        ):
            check_result(await self.run("clone", name, argv, within_s=60), "git " + name, "clone", 60)
        shallow = ["git", "fetch", "--no-tags", "--depth", "1", "origin", commit]
        fetched = await self.run("clone", "fetch-one", shallow, within_s=within_s)
        if fetched.status.code != 0:
            await self._live.write("clone", "The server gives no single commits; fetching all of the history.\n")
            fetched = await self.run("clone", "fetch-all", ["git", "fetch", "--tags", "origin"], within_s=within_s)
            check_result(fetched, "Fetching the repository", "clone", within_s, hint=await self.denied_hint())
        ref = wanted_ref(self._template, self._live.build.lineage)
        checkout = ["git", "-c", "advice.detachedHead=false", "checkout", "-q", "-f", commit]
        result = await self.run("clone", "checkout", checkout, within_s=within_s)
        check_result(result, f"Checking out {ref or commit}", "clone", within_s)

    async def setup(self, name: str, script: str, *, within_s: float) -> None:
        """One setup command, as the agent user in the workspace."""
        start = ExecStart(id=self._exec_id(name, ""), script=script, timeout_s=within_s)
        result = await self._logged(name, start, within_s=within_s)
        if result.status.code != 0 or result.status.reason not in (None, "exit"):
            check_result(result, f"Setup command {name[6:]}", "setup", within_s, hint=await self.denied_hint())

    async def seal(self, image_name: str, *, within_s: float) -> Image:
        """End what still runs, and seal the file system. An image of that name is taken as it is."""
        try:
            await self._end_commands()
        except WarmpoolError as error:
            # Sealed before and stopped since: the runtime then has the image, or says that it has not.
            self._live.say("seal", f"its daemon no longer answers: {error.message}")
        return await retried(
            lambda: self._runtime.commit(self.id, image_name), within_s=within_s, what="Sealing the image"
        )

    async def run(self, step: str, name: str, argv: list[str], *, within_s: float) -> CommandResult:
        """A command of the build's own, as the agent user in the workspace."""
        await self._live.write(step, "$ " + " ".join(argv) + "\n")
        start = ExecStart(id=self._exec_id(step, name), argv=[*_ALWAYS_PROXIED, *argv], timeout_s=within_s)
        return await self._logged(step, start, within_s=within_s)

    async def denied_hint(self) -> str:
        """Which hosts the build asked for in vain: the commonest reason why a build fails."""
        if self._egress is None:
            return ""
        try:
            report = await self._egress.get_door(self.id)
        except WarmpoolError:
            return ""
        targets = sorted({entry.target for entry in report.last_denied})
        if not targets:
            return ""
        return f"Hosts that build_allow does not name were refused: {', '.join(targets[:10])}."

    async def _logged(self, step: str, start: ExecStart, *, within_s: float) -> CommandResult:
        assert self._door is not None
        return await run_logged(
            self._agents, self._door, start, lambda text: self._live.write(step, text), within_s=within_s
        )

    async def _write_files(self) -> None:
        assert self._door is not None
        for number, (path, content) in enumerate(sorted(self._surroundings.files.items())):
            start = ExecStart(
                id=self._exec_id("files", str(number)),
                argv=["sh", "-c", _WRITE_FILE, "sh", path],
                stdin=content.decode(),
                timeout_s=30,
                user="root",
            )
            result = await self._logged("resolve", start, within_s=30)
            check_result(result, f"Writing {path}", "files", 30)

    async def _end_commands(self) -> None:
        if self._door is None:
            # Taken up after it was stopped for sealing: nothing runs in it.
            return
        listed = await self._agents.exec_list(self._door, None)
        for command in listed.commands:
            if command.state != "closed":
                await self._agents.exec_signal(self._door, None, command.id, SignalRequest(signal="KILL"))

    async def _check_alive(self) -> None:
        running = await self._runtime.inspect(self.id)
        if running is None or running.state == "stopped":
            raise NotFound("sandbox_died", "The build sandbox stopped before it was ready.")

    def _exec_id(self, step: str, name: str) -> str:
        """The same for each run of this attempt, so that a command is taken up rather than run twice."""
        build = self._live.build
        return "-".join(part for part in (build.id, str(build.attempt), step, name) if part)

    def _spec(self, image: Image) -> SandboxSpec:
        build, template = self._live.build, self._template
        return SandboxSpec(
            id=self.id,
            image=image.ref,
            resources=template.resources,
            labels={
                "deployment": self._deployment,
                "purpose": "build",
                "sandbox": self.id,
                "build": build.id,
                "template": template.key,
                "tenant": template.tenant,
            },
            door_key_hex=sandbox_key(self._secret, self.id).hex(),
            docker=template.docker,
            egress=True,
            trusted=template.trusted,
            platform_env=dict(self._surroundings.env),
            template_env=dict(template.env),
        )

    def _door_spec(self, socket_path: str) -> DoorSpec:
        if not self._template.by_operator:
            # Checked when it was put, too; but here a gap would open this host's own services.
            check_public_hosts(self._template)
        allow = [*self._template.build_allow, *self._surroundings.allow]
        if self._template.repository is not None:
            allow.append(repository_host(self._template.repository))
        labels = {"purpose": "build", "build": self._live.build.id, "tenant": self._template.tenant}
        return DoorSpec(socket_path=socket_path, allow=sorted(set(allow)), labels=labels)
