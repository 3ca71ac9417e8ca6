"""Failures on purpose: by a plan, call by call, or at random with a seed.

A fault ``after`` the call has taken effect stands for an answer that was lost: the call must be repeatable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from controlplane.errors import Retryable, WarmpoolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``after``: raised once the call has taken effect, else before it does anything."""

    error: Callable[[], WarmpoolError]
    moment: Literal["before", "after"] = "before"


class Faults(Protocol):
    def draw(self, call: str) -> Fault | None:
        """The fault of this one call (``create``, ``destroy``, ``bind``, …), None to let it be."""
        ...


class FaultPlan:
    """Per call name the fate of its first, second, … call; later ones succeed."""

    def __init__(self, plan: Mapping[str, Sequence[Fault | None]]) -> None:
        self._left = {call: list(fates) for call, fates in plan.items()}

    def draw(self, call: str) -> Fault | None:
        fates = self._left.get(call)
        return fates.pop(0) if fates else None


class FaultRate:
    """Each call fails with probability ``rate``, half of the faults after it took effect.

    ``calls`` empty means all calls.
    """

    def __init__(self, rate: float, *, calls: frozenset[str] = frozenset(), seed: int = 0) -> None:
        if not 0 <= rate <= 1:
            raise ValueError("rate is a probability")
        self._rate = rate
        self._calls = calls
        self._random = random.Random(seed)

    def draw(self, call: str) -> Fault | None:
        if (self._calls and call not in self._calls) or self._random.random() >= self._rate:
            return None
        moment: Literal["before", "after"] = "after" if self._random.random() < 0.5 else "before"
        return Fault(error=lambda: injected(call), moment=moment)


class FaultPoint:
    """``with FaultPoint(faults, "create"):`` raises the drawn fault on entry, or on a leave without error."""

    def __init__(self, faults: Faults | None, call: str) -> None:
        self._fault = faults.draw(call) if faults is not None else None

    def __enter__(self) -> None:
        if self._fault is not None and self._fault.moment == "before":
            raise self._fault.error()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self._fault is not None and self._fault.moment == "after":
            raise self._fault.error()


def injected(call: str) -> Retryable:
    return Retryable("injected_fault", f"The simulated runtime let {call} fail on purpose.", after_s=0.1)
