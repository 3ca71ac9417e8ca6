"""sandboxd of simulated sandboxes: the agent client's port over the shared world, without a network.

Doors are ``sim:ID``. Tokens are not simulated; who may speak is: a session only to the sandbox it holds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from agents.wire import (
    PROTOCOL_VERSION,
    Binding,
    Bound,
    EventPage,
    ExecEvent,
    ExecList,
    ExecStart,
    ExecStatus,
    FileInfo,
    FileList,
    Hello,
    Ready,
    SignalRequest,
)
from controlplane.errors import Conflict, Denied, NotFound, Permanent, Retryable
from controlplane.ids import SandboxId, SessionId
from controlplane.runtime.simulated import files, history
from controlplane.runtime.simulated.commands import Outcome, Surroundings, course_of
from controlplane.runtime.simulated.faults import FaultPoint, Faults
from controlplane.runtime.simulated.latency import LogNormal
from controlplane.runtime.simulated.world import Claim, ExecEnd, ExecRecord, World

# Another process may end a command that this one waits for; it is looked at again at least this often.
_LOOK_AGAIN_S = 0.1
WORKSPACE = "/workspace"


class HasDoor(Protocol):
    """What ``agentclient.port.Door`` is; that package stands beside this one and is not imported."""

    @property
    def sandbox(self) -> SandboxId: ...

    @property
    def address(self) -> str: ...


class SimulatedAgent:
    """``bind_latency``: time that each bind takes. ``programs``: what further commands do, by name."""

    def __init__(
        self,
        world: World,
        *,
        bind_latency: LogNormal | None = None,
        faults: Faults | None = None,
        programs: Mapping[str, Outcome] | None = None,
    ) -> None:
        self._world = world
        self._bind_latency = bind_latency or LogNormal(0.0)
        self._faults = faults
        self._programs = dict(programs or {})

    async def hello(self, door: HasDoor) -> Hello:
        with FaultPoint(self._faults, "hello"):
            sandbox = self._reach(door)
            record = self._world.sandbox(sandbox)
            if record is None:
                raise _unreachable(sandbox)
            return Hello(
                protocol=PROTOCOL_VERSION,
                daemon_version="simulated",
                sandbox_id=sandbox,
                boot_id=record.nonce,
                python="simulated",
            )

    async def ready(self, door: HasDoor, wait_s: float) -> Ready:
        with FaultPoint(self._faults, "ready"):
            deadline = time.time() + wait_s
            while True:
                sandbox = self._reach(door)
                up = self._world.up(sandbox)
                if up is None:
                    raise _unreachable(sandbox)
                now = time.time()
                ready = now >= up.ready_at
                if ready or now >= deadline:
                    part = "ready" if ready else "starting"
                    return Ready(ready=ready, parts={"daemon": part}, uptime_s=now - up.started_at)
                await asyncio.sleep(min(up.ready_at, deadline) - now)

    async def bind(
        self,
        door: HasDoor,
        session: SessionId,
        tenant: str,
        env: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> Bound:
        with FaultPoint(self._faults, "bind"):
            await self._bind_latency.pass_by()
            sandbox = self._reach(door)
            mine = Claim(claim_id=session, tenant=tenant, env=dict(env), labels=dict(labels), bound_at=time.time())
            standing = self._world.bind(sandbox, mine)
            if standing.claim_id != session:
                raise Conflict("already_bound", f"Sandbox {sandbox} is held by another session.")
            return Bound(claim_id=session, first=standing is mine, bound_at=standing.bound_at)

    async def binding(self, door: HasDoor) -> Binding:
        with FaultPoint(self._faults, "binding"):
            return self._binding(self._reach(door))

    def _binding(self, sandbox: str) -> Binding:
        claim, up, now = self._world.claim(sandbox), self._world.up(sandbox), time.time()
        ends = [
            history.ends_at(record, self._world.exec_end(sandbox, record.start.id))
            for record in self._world.execs(sandbox)
        ]
        moments = [min(end, now) for end in ends] + ([claim.bound_at] if claim else [])
        return Binding(
            sandbox_id=sandbox,
            claim_id=claim.claim_id if claim else None,
            tenant=claim.tenant if claim else None,
            labels=claim.labels if claim else {},
            bound_at=claim.bound_at if claim else None,
            last_activity_at=max(moments, default=up.started_at if up else now),
            running=sum(1 for end in ends if end > now),
        )

    async def exec_start(self, door: HasDoor, session: SessionId | None, start: ExecStart) -> ExecStatus:
        with FaultPoint(self._faults, "exec_start"):
            sandbox = self._speak(door, session)
            if (start.script is None) == (start.argv is None):
                raise Permanent("INVALID_COMMAND", "Give exactly one of script and argv.")
            if start.timeout_s is not None and start.timeout_s <= 0:
                raise Permanent("INVALID_TIMEOUT", "timeout_s must be above 0.")
            claim = self._world.claim(sandbox)
            around = Surroundings(
                env={**(claim.env if claim else {}), **start.env},
                cwd=files.absolute(start.cwd or WORKSPACE),
                read_file=lambda path: files.content(self._world, sandbox, path),
                programs=self._programs,
            )
            record = ExecRecord(start=start, started_at=time.time(), course=course_of(start, around))
            return self._status(sandbox, self._world.add_exec(sandbox, record))

    async def exec_status(self, door: HasDoor, session: SessionId | None, exec_id: str) -> ExecStatus:
        sandbox = self._speak(door, session)
        return self._status(sandbox, self._exec(sandbox, exec_id))

    async def exec_list(self, door: HasDoor, session: SessionId | None) -> ExecList:
        sandbox = self._speak(door, session)
        return ExecList(commands=[self._status(sandbox, record) for record in self._world.execs(sandbox)])

    async def exec_events(
        self, door: HasDoor, session: SessionId | None, exec_id: str, after: int, wait_s: float, limit: int = 1000
    ) -> EventPage:
        deadline = time.time() + wait_s
        while True:
            sandbox = self._speak(door, session)
            record = self._exec(sandbox, exec_id)
            end, now = self._world.exec_end(sandbox, exec_id), time.time()
            events = history.history(record, end, now)
            page = [event for event in events if event.seq > after][: max(1, limit)]
            complete = events[-1].kind == "closed" and (page[-1] is events[-1] if page else True)
            if page or complete or now >= deadline:
                return EventPage(events=page, next_after=page[-1].seq if page else after, complete=complete)
            await asyncio.sleep(min(history.next_event_at(record, end, now) - now, deadline - now, _LOOK_AGAIN_S))

    async def exec_stream(
        self, door: HasDoor, session: SessionId | None, exec_id: str, after: int
    ) -> AsyncIterator[ExecEvent]:
        complete = False
        while not complete:
            try:
                page = await self.exec_events(door, session, exec_id, after, wait_s=math.inf)
            except Retryable as error:
                raise Retryable("stream_broken", f"The events of {exec_id} broke off: {error.message}") from error
            for event in page.events:
                yield event
            after, complete = page.next_after, page.complete

    async def exec_stdin(self, door: HasDoor, session: SessionId | None, exec_id: str, data: bytes, eof: bool) -> None:
        self._exec(self._speak(door, session), exec_id)
        raise Conflict("stdin_closed", "A simulated command reads only the stdin that it was started with.")

    async def exec_signal(
        self, door: HasDoor, session: SessionId | None, exec_id: str, request: SignalRequest
    ) -> ExecStatus:
        sandbox = self._speak(door, session)
        record = self._exec(sandbox, exec_id)
        if not history.known_signal(request.signal):
            raise Permanent("INVALID_SIGNAL", f"Simulated commands do not know the signal {request.signal[:20]!r}.")
        # An end that comes after the command's own end changes nothing: history takes the earlier one.
        end = ExecEnd(time.time(), request.signal, request.cancel)
        self._world.end_exec(sandbox, exec_id, end)
        return self._status(sandbox, record)

    async def file_read(self, door: HasDoor, session: SessionId | None, path: str) -> AsyncIterator[bytes]:
        data = files.content(self._world, self._speak(door, session), files.absolute(path))
        if data is None:
            raise NotFound("FILE_NOT_FOUND", f"There is no file {path[:200]!r}.")
        for start in range(0, len(data), 65536):
            yield data[start : start + 65536]

    async def file_write(
        self, door: HasDoor, session: SessionId | None, path: str, data: AsyncIterator[bytes], mode: str | None
    ) -> FileInfo:
        return await files.write(self._world, self._speak(door, session), path, data, mode)

    async def file_list(self, door: HasDoor, session: SessionId | None, path: str) -> FileList:
        return files.listing(self._world, self._speak(door, session), path)

    async def file_delete(self, door: HasDoor, session: SessionId | None, path: str, recursive: bool) -> None:
        files.delete(self._world, self._speak(door, session), path, recursive)

    def forget(self, sandbox: SandboxId) -> None:
        """Nothing is pooled here."""

    async def close(self) -> None:
        """Nothing is held here."""

    def _reach(self, door: HasDoor) -> SandboxId:
        sandbox = door.sandbox
        if door.address != f"sim:{sandbox}" or not self._world.up(sandbox) or self._world.stopped(sandbox):
            raise _unreachable(sandbox)
        return sandbox

    def _speak(self, door: HasDoor, session: SessionId | None) -> SandboxId:
        sandbox = self._reach(door)
        if session is not None:
            claim = self._world.claim(sandbox)
            if claim is None or claim.claim_id != session:
                raise Denied("not_bound", f"Session {session} does not hold sandbox {sandbox}.")
        return sandbox

    def _exec(self, sandbox: str, exec_id: str) -> ExecRecord:
        record = self._world.exec(sandbox, exec_id)
        if record is None:
            raise NotFound("exec_not_found", f"There is no command {exec_id[:80]!r} in this sandbox.")
        return record

    def _status(self, sandbox: str, record: ExecRecord) -> ExecStatus:
        return history.status(record, self._world.exec_end(sandbox, record.start.id), time.time())


def _unreachable(sandbox: str) -> Retryable:
    return Retryable("sandbox_unreachable", f"Nobody answers at the door of sandbox {sandbox}.")
