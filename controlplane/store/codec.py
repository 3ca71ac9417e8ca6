"""Records as JSON: typed on the way out, checked on the way in.

The scripts rewrite records with cjson, which keeps 14 digits of a number; what can't survive that is
refused before it is stored, since one unreadable record would make every later reading fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from controlplane.errors import Permanent

T = TypeVar("T")

MAX_NUMBER = 10**14
_encoder = msgspec.json.Encoder()


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def check(value: object, where: str) -> None:
    """Permanent ``unstorable_value`` if a number in ``value`` is not finite or has more than 14 digits."""
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int | float):
        if not -MAX_NUMBER < value < MAX_NUMBER:
            raise Permanent(
                "unstorable_value",
                f"{where} is {value!s:.40}, which is not a number below 10^14.",
                hint="Use a smaller one.",
            )
    elif is_dataclass(value):
        kind: Any = type(value)
        for name in _field_names(kind):
            check(getattr(value, name), name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check(item, str(key))
    elif isinstance(value, Sequence):
        for item in value:
            check(item, where)


def encode(record: object, *, without: tuple[str, ...] = ()) -> bytes:
    """JSON of a record or of named arguments. ``without``: fields that the script sets itself."""
    check(record, "value")
    try:
        if not without:
            return _encoder.encode(record)
        plain = msgspec.to_builtins(record)
        return _encoder.encode({name: value for name, value in plain.items() if name not in without})
    except UnicodeEncodeError as error:
        raise Permanent("unstorable_value", "A text is not valid Unicode (a lone surrogate).") from error


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    made = _decoders.get(kind)
    if made is None:
        made = _decoders[kind] = msgspec.json.Decoder(kind)
    return made


def decode(kind: type[T], raw: bytes) -> T:
    """A stored record. Permanent ``record_unreadable`` if it isn't one."""
    try:
        record: T = _decoder(kind).decode(raw)
    except msgspec.MsgspecError as error:
        raise _unreadable(kind, raw, error) from error
    return record


def decode_all(kind: type[T], raws: Sequence[bytes]) -> list[T]:
    return [decode(kind, raw) for raw in raws]


class LastSeen(Generic[T]):
    """Decodes all records of a kind again and again, at the price of those that changed.

    Records are frozen, so those whose text is the same as last time are given out again. Reading 10,000
    sandboxes of which few changed takes a thirtieth of the time.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._known: dict[bytes, T] = {}

    def decode_all(self, raws: Sequence[bytes]) -> tuple[T, ...]:
        known, kind = self._known, self._kind
        self._known = {raw: known[raw] if raw in known else decode(kind, raw) for raw in raws}
        return tuple(self._known.values())


def _unreadable(kind: type, raw: bytes, error: Exception) -> Permanent:
    return Permanent(
        "record_unreadable",
        f"A stored {kind.__name__} can't be read ({error}): {raw[:120]!r}.",
        hint="It was written by another version, or by hand.",
    )
