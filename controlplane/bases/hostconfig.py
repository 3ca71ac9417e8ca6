"""What the host's network needs of a build: its CA bundle, package indexes and mirrors.

Collected from the places where people configure them, and passed into builds by name: nothing is passed
that holds credentials or names a file of the host; what was left out is said in ``notes``.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from controlplane.bases.aptsources import Mirrors, host_mirrors

PIP_URLS = ("index-url", "extra-index-url")
_PIP_OTHER = ("trusted-host", "timeout", "default-timeout")
_APT_OPTIONS = ("Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::Retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """``ca_bundle``: a PEM file of the host. ``pip``: option name → value. ``pip_own``: addresses of the index
    that pip uses when none is named, and of its files. ``mirrors``: of Debian, as the host's apt names them.
    ``notes``: what of the host's settings is not passed on, and why."""

    ca_bundle: Path | None = None
    pip: Mapping[str, str] = field(default_factory=dict)
    pip_own: tuple[str, ...] = ()
    npm_registry: str | None = None
    mirrors: Mirrors = field(default_factory=Mirrors)
    apt_options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def environment(self, ca_path_inside: str) -> dict[str, str]:
        """Variables for a build; ``ca_path_inside`` is where the CA bundle is mounted in the sandbox."""
        env: dict[str, str] = {}
        if self.ca_bundle is not None:
            env = dict.fromkeys(
                (
                    "SSL_CERT_FILE",
                    "REQUESTS_CA_BUNDLE",
                    "PIP_CERT",
                    "CURL_CA_BUNDLE",
                    "GIT_SSL_CAINFO",
                    "NODE_EXTRA_CA_CERTS",
                ),
                ca_path_inside,
            )
        for option, value in self.pip.items():
            env["PIP_" + option.upper().replace("-", "_")] = value
        if self.npm_registry is not None:
            env["npm_config_registry"] = self.npm_registry
        return env

    def files(self, suite: str = "bookworm") -> dict[str, str]:
        """Absolute path in the sandbox → content: apt's sources, which a base itself has not, and the few
        options that travel. ``suite``: the base's release."""
        files: dict[str, str] = {}
        sources = [f"deb {url} {suite}{pocket} main" for url in self.mirrors.main[:1] for pocket in ("", "-updates")]
        sources += [f"deb {url} {suite}-security main" for url in self.mirrors.security[:1]]
        if sources:
            files["/etc/apt/sources.list"] = "\n".join(sources) + "\n"
        if self.apt_options:
            lines = (f'{name} "{value}";\n' for name, value in sorted(self.apt_options.items()))
            files["/etc/apt/apt.conf.d/90host"] = "".join(lines)
        return files


def detect(
    mode: Literal["auto", "none"],
    *,
    env: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    home: Path | None = None,
) -> HostConfig:
    """The host's settings (``auto``) or none of them (``none``). Reads a few small files, runs nothing."""
    if mode == "none":
        return HostConfig()
    env = os.environ if env is None else env
    home = Path.home() if home is None else home
    notes: list[str] = []
    notes += _proxy_notes(env)
    return HostConfig(
        ca_bundle=_ca_bundle(env, root),
        pip=_pip(env, root, home, notes),
        pip_own=_pip_own(notes),
        npm_registry=_npm(env, root, home, notes),
        mirrors=host_mirrors(root / "etc/apt"),
        apt_options=_apt_options(root / "etc/apt"),
        notes=tuple(dict.fromkeys(notes)),
    )


def _ca_bundle(env: Mapping[str, str], root: Path) -> Path | None:
    named = env.get("SSL_CERT_FILE", "")
    candidates = [Path(named)] if named.startswith("/") else []
    candidates.append(root / "etc/ssl/certs/ca-certificates.crt")
    return next((path for path in candidates if path.is_file()), None)


def _pip(env: Mapping[str, str], root: Path, home: Path, notes: list[str]) -> dict[str, str]:
    """pip's own order: global file, user file, PIP_CONFIG_FILE, environment; later wins."""
    found: dict[str, str] = {}
    paths = [root / "etc/xdg/pip/pip.conf", root / "etc/pip.conf"]
    paths += [home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    if named := env.get("PIP_CONFIG_FILE"):
        paths.append(Path(named))
    for path in paths:
        found |= _pip_file(path)
    for option in (*PIP_URLS, *_PIP_OTHER):
        if value := env.get("PIP_" + option.upper().replace("-", "_")):
            found[option] = value
    for option in PIP_URLS:
        if option in found:
            kept = [url for url in found.pop(option).split() if _passable(url, f"pip {option}", notes)]
            if kept:
                found[option] = " ".join(kept)
    return found


def _pip_own(notes: list[str]) -> tuple[str, ...]:
    """pip knows its own index; it is the one beside this program, as pip has no command that tells."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        notes.append("pip is not installed beside Warmpool, so builds may reach no index but one that is configured.")
        return ()
    return (PyPI.simple_url, f"https://{PyPI.file_storage_domain}/")


def _pip_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return {}
    sections = [section for section in ("global", "install") if parser.has_section(section)]
    names = (*PIP_URLS, *_PIP_OTHER)
    return {
        option: " ".join(parser.get(section, option).split())
        for section in sections
        for option in names
        if parser.has_option(section, option)
    }


def _npm(env: Mapping[str, str], root: Path, home: Path, notes: list[str]) -> str | None:
    value = env.get("npm_config_registry") or env.get("NPM_CONFIG_REGISTRY")
    for path in (home / ".npmrc", root / "etc/npmrc"):
        value = value or next(_matches(path, r"^\s*registry\s*=\s*(\S+)"), None)
    return value if value and _passable(value, "npm registry", notes) else None


def _apt_options(apt_dir: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in [*sorted((apt_dir / "apt.conf.d").glob("*")), apt_dir / "apt.conf"]:
        for name in _APT_OPTIONS:
            for value in _matches(path, rf'^\s*{re.escape(name)}\s+"?([A-Za-z0-9]+)"?\s*;'):
                found[name] = value
    return found


def _proxy_notes(env: Mapping[str, str]) -> Iterator[str]:
    for name in ("https_proxy", "http_proxy"):
        if env.get(name) or env.get(name.upper()):
            yield f"{name} is not passed on: the egress gateway connects directly, past the host's proxy."


def _matches(path: Path, pattern: str) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        text = ""
    yield from re.findall(pattern, text, flags=re.MULTILINE)


def _passable(url: str, what: str, notes: list[str]) -> bool:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        credentials = parts.username is not None or parts.password is not None
        _ = parts.port
    except ValueError:
        usable, credentials = False, False
    if credentials:
        notes.append(f"{what} holds credentials and is not passed into builds.")
    elif not usable:
        notes.append(f"{what} is no http(s) address and is not passed into builds.")
    return usable and not credentials
