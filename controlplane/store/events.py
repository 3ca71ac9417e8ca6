"""The event stream, the scheduler's wake-up and shared totals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from controlplane.errors import Permanent
from controlplane.ids import TenantId
from controlplane.model.events import Event
from controlplane.store.parts import StorePart

_ID = re.compile(r"\d{1,20}(-\d{1,20})?")
_PAGE = 500
_FOLLOW_S = 30.0
_DATA = msgspec.json.Decoder(dict[str, str])


def _event(entry: tuple[bytes, dict[bytes, bytes]]) -> Event:
    key, fields = entry
    values = {name.decode(): value for name, value in fields.items()}
    return Event(
        kind=values["kind"].decode(),
        subject=values["subject"].decode(),
        tenant=values["tenant"].decode(),
        actor=values["actor"].decode(),
        reason=values["reason"].decode(),
        data=_DATA.decode(values["data"]),
        id=key.decode(),
        at=float(values["at"]),
    )


class Events(StorePart):
    async def append_event(self, event: Event) -> str:
        """Add one; its id and time are set here."""
        args = {
            "kind": event.kind,
            "subject": event.subject,
            "tenant": event.tenant,
            "actor": event.actor,
            "reason": event.reason,
            "data": event.data,
        }
        key: bytes = await self._link.run("append_event", args, repeat=False)
        return key.decode()

    async def read_events(self, after: str, tenant: TenantId | None, limit: int, block_s: float) -> list[Event]:
        """Up to ``limit`` events; waits up to ``block_s`` for a first one. Permanent ``invalid_event_id``."""
        events, _ = await self._read_on(await self._cursor(after), tenant, limit, block_s)
        return events

    async def follow_events(self, after: str, tenant: TenantId | None) -> AsyncIterator[Event]:
        """Every event later than ``after``, as it happens, without end."""
        cursor = await self._cursor(after)
        while True:
            events, cursor = await self._read_on(cursor, tenant, _PAGE, _FOLLOW_S)
            for event in events:
                yield event

    async def _cursor(self, after: str) -> str:
        if after == "$":
            last = await self._link.command("XREVRANGE", self._key("events"), "+", "-", "COUNT", 1)
            return last[0][0].decode() if last else "0"
        if not _ID.fullmatch(after):
            raise Permanent(
                "invalid_event_id", f"{after[:40]!r} is not an event id.", hint="Use one you were given, or 0."
            )
        return after

    async def _read_on(
        self, cursor: str, tenant: TenantId | None, limit: int, block_s: float
    ) -> tuple[list[Event], str]:
        """Events, and where to read on: other tenants' events are passed over for good."""
        clock = asyncio.get_running_loop().time
        end = clock() + block_s
        found: list[Event] = []
        while len(found) < limit:
            page = _PAGE if tenant is not None else limit - len(found)
            entries = await self._page(cursor, page, 0.0 if found else end - clock())
            if not entries:
                if found or clock() >= end:
                    break
                continue
            for entry in entries:
                cursor = entry[0].decode()
                event = _event(entry)
                if tenant is None or event.tenant == tenant:
                    found.append(event)
                    if len(found) >= limit:
                        break
        return found, cursor

    async def _page(self, cursor: str, count: int, block_s: float) -> list[Any]:
        words = ("COUNT", count, "STREAMS", self._key("events"), cursor)
        if block_s <= 0:
            answer = await self._link.command("XREAD", *words)
        else:
            answer = await self._link.wait(block_s, "XREAD", "BLOCK", max(1, round(block_s * 1000)), *words)
        return answer[0][1] if answer else []

    async def wake(self) -> None:
        await self._link.run("wake")

    async def wait_wake(self, timeout_s: float) -> bool:
        """For one caller at a time, the leader: a wake-up goes to one of those who wait."""
        if timeout_s <= 0:
            return await self._link.command("LPOP", self._key("wake")) is not None
        return await self._link.wait(timeout_s, "BLPOP", self._key("wake"), timeout_s) is not None

    async def counters(self) -> Mapping[str, float]:
        flat = await self._link.command("HGETALL", self._key("counters"))
        return {name.decode(): float(value) for name, value in flat.items()}

    async def count(self, name: str, value: float = 1.0) -> None:
        await self._link.command("HINCRBYFLOAT", self._key("counters"), name, value, repeat=False)
