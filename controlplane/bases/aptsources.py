"""The host's Debian mirrors, from its apt sources: where the packages of a base are fetched from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.errors import Permanent

_SUITE = re.compile(
    r"(?:oldoldstable|oldstable|stable|testing|sid|bullseye|bookworm|trixie|forky)"
    r"(?P<pocket>-updates|-security|-backports|-proposed-updates|/updates)?"
)
_MIRROR_LIST = "mirror+file:"
_HINT = (
    "Name a Debian mirror in the host's apt sources (/etc/apt/sources.list or sources.list.d), for example "
    "'deb http://mirror.example/debian bookworm main' and "
    "'deb http://mirror.example/debian-security bookworm-security main'."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrors:
    """Roots of the Debian archive and of its security archive, the most wanted first; empty where none is known."""

    main: tuple[str, ...] = ()
    security: tuple[str, ...] = ()

    def of(self, archive: str) -> tuple[str, ...]:
        return self.security if archive == "security" else self.main


def host_mirrors(apt_dir: Path) -> Mirrors:
    """The http(s) mirrors that ``apt_dir`` (``/etc/apt``) names, in its order.

    Only sources that carry Debian itself count (a Debian suite with the component main). A mirror that
    serves another release is taken too: mirrors carry every release, and each file is checked.
    Addresses that hold credentials are left out.
    """
    main: list[str] = []
    security: list[str] = []
    for uri, suite, components in _entries(apt_dir):
        match = _SUITE.fullmatch(suite)
        if match is None or "main" not in components:
            continue
        found = security if match["pocket"] in ("-security", "/updates") else main
        found += [each.rstrip("/") for each in _listed(uri, apt_dir) if _usable(each)]
    return Mirrors(main=tuple(dict.fromkeys(main)), security=tuple(dict.fromkeys(security)))


def no_mirror(what: str) -> Permanent:
    """The error for a host whose apt sources name no mirror of ``what``."""
    return Permanent("no_debian_mirror", f"This host's apt sources name no http(s) mirror of {what}.", hint=_HINT)


def _listed(uri: str, apt_dir: Path) -> list[str]:
    """The addresses that ``uri`` stands for: those in a mirror list (Debian's cloud images have one), else itself."""
    if not uri.startswith(_MIRROR_LIST):
        return [uri]
    path = "/" + uri.removeprefix(_MIRROR_LIST).lstrip("/")
    below = apt_dir / path.removeprefix("/etc/apt/") if path.startswith("/etc/apt/") else Path(path)
    lines = (line.split("#", 1)[0].split() for line in _text(below).splitlines())
    return [words[0] for words in lines if words]


def _usable(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        return False


def _entries(apt_dir: Path) -> Iterator[tuple[str, str, list[str]]]:
    parts = apt_dir / "sources.list.d"
    for path in [apt_dir / "sources.list", *sorted(parts.glob("*.list"))]:
        yield from _one_line_entries(_text(path))
    for path in sorted(parts.glob("*.sources")):
        yield from _deb822_entries(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _one_line_entries(text: str) -> Iterator[tuple[str, str, list[str]]]:
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", " ", line.split("#", 1)[0]).split()
        if len(words) >= 4 and words[0] == "deb":
            yield words[1], words[2], words[3:]


def _deb822_entries(text: str) -> Iterator[tuple[str, str, list[str]]]:
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                fields[key] = f"{fields.get(key, '')} {line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield uri, suite, fields.get("components", "").split()
