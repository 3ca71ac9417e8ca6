"""What commands print: JSON, tables, notes. Text from elsewhere is shown without its control characters."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """One document on standard output."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_json_line(value: Any) -> None:
    """One line of a stream of documents; written at once."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark for people, on standard error."""
    print(text, file=sys.stderr)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table on standard output; ``empty`` is said on standard error when there is no row."""
    shown = [[clean(cell) for cell in row] for row in rows]
    if not shown:
        note(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not sys.stdout.isatty())
    for row in shown:
        table.add_row(*(Text(cell) for cell in row))
    # Piped output is not cut to some terminal's width.
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 400, highlight=False).print(table)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line; those without a value are left out."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        text = clean(value)
        if text not in ("", "-"):
            print(f"{name:<{width}}  {text}")


def clean(value: object) -> str:
    """Text for a terminal: no control characters, so that a label can't move the cursor; ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    spaced = str(value).replace("\r\n", " ").replace("\n", " ").replace("\t", " ")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in spaced)


def short(text: str | None, length: int = 80) -> str | None:
    """The first line, cut with an ellipsis: for tables, whose details are a ``show`` away."""
    if text is None:
        return None
    first = text.strip().split("\n", 1)[0]
    return first if len(first) <= length and first == text.strip() else first[:length].rstrip() + "…"


def size(count: int | None) -> str:
    """Bytes with a binary unit."""
    if count is None:
        return "-"
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.4g} {unit}"
        number /= 1024
    raise AssertionError("the last unit returns")


def ago(at: float | None, now: float | None = None) -> str:
    """How long ago an epoch time was, or in how long it will be."""
    if not at:
        return "-"
    passed = (time.time() if now is None else now) - at
    return f"{span(passed)} ago" if passed >= 0 else f"in {span(-passed)}"


def span(seconds: float | None) -> str:
    """A duration in its one or two largest units."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts, left = [], int(seconds)
    for name, length in units:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{name}")
    return " ".join(parts[:2])
