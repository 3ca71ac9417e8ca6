"""``warmpool cp``: one file, to or from a session."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.operation import Cli, operation
from controlplane.cli.output import note, print_json, size


def register(app: typer.Typer) -> None:
    app.command("cp", rich_help_panel="Sessions")(copy)


@operation
def copy(
    cli: Cli,
    source: Annotated[str, typer.Argument(help="SESSION:PATH, a local path, or - for standard input.")],
    target: Annotated[str, typer.Argument(help="SESSION:PATH, a local path or folder, or - for standard output.")],
) -> None:
    """Copy a file to or from a session, as a whole or not at all."""
    from_session, to_session = _remote(source), _remote(target)
    if (from_session is None) == (to_session is None):
        raise typer.BadParameter("one of the two is SESSION:PATH, such as se-1a2b3c:notes.txt")
    if from_session is not None:
        count = _download(cli, *from_session, target)
    else:
        assert to_session is not None
        count = _upload(cli, source, *to_session)
    if cli.json and target != "-":
        print_json({"from": source, "to": target, "bytes": count})
    note(f"copied {size(count)}")


def _remote(text: str) -> tuple[str, str] | None:
    """Session and path; None for a local path. A path with a colon is written ./a:b."""
    session, colon, path = text.partition(":")
    if not colon or "/" in session or not session:
        return None
    if not path:
        raise typer.BadParameter(f"{text!r} names no file in the session")
    return session, path


def _download(cli: Cli, session: str, path: str, target: str) -> int:
    pieces = cli.api.connect(session).files.read(path, format="stream")
    if target == "-":
        count = 0
        for piece in pieces:
            count += sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return count
    place = Path(target)
    if place.is_dir():
        place = place / path.rstrip("/").rsplit("/", 1)[-1]
    draft = place.with_name(f".{place.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        count = 0
        with draft.open("xb") as file:
            for piece in pieces:
                count += file.write(piece)
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)
    return count


def _upload(cli: Cli, source: str, session: str, path: str) -> int:
    files = cli.api.connect(session).files
    if source == "-":
        return files.write(path, sys.stdin.buffer).size
    place = Path(source)
    if place.is_dir():
        raise typer.BadParameter(f"{source} is a folder; pack it: tar c {source} | warmpool session exec -i …")
    if path.endswith("/"):
        path += place.name
    mode = f"{place.stat().st_mode & 0o777:04o}"
    with place.open("rb") as file:
        return files.write(path, file, mode=mode).size
