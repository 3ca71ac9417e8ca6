"""Events: what changed, who did it, why and when. Kept in one bounded, resumable sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``id`` grows with time and resumes a stream. ``kind`` is ``subject.change`` (``session.attached``).

    ``tenant`` empty: of interest to operators only. ``data`` holds flat text values, never env values.
    """

    kind: str
    subject: str
    tenant: str = ""
    actor: str = ""
    reason: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    at: float = 0.0
