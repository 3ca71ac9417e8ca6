"""How long each step of one request took."""

from __future__ import annotations

from collections.abc import Callable


class Timings:
    """``mark`` names the step that ends now. ``started``: when the request came in, by the same clock."""

    __slots__ = ("_at", "_now", "_spent", "_started")

    def __init__(self, now: Callable[[], float], started: float | None = None) -> None:
        self._now = now
        self._started = self._at = now() if started is None else started
        self._spent: dict[str, float] = {}

    def mark(self, step: str) -> None:
        at = self._now()
        self._spent[step] = self._spent.get(step, 0.0) + (at - self._at) * 1000
        self._at = at

    def finish(self) -> dict[str, float]:
        """Milliseconds per step so far, and their ``total`` since the start."""
        return {step: round(ms, 3) for step, ms in self._spent.items()} | {
            "total": round((self._now() - self._started) * 1000, 3)
        }
