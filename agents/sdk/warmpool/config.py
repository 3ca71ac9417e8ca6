"""Where the API is and which key to use: arguments, environment, then the file ``warmpool up`` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from warmpool.errors import AuthenticationException, InvalidArgumentException

DEFAULT_URL = "http://127.0.0.1:8700"


class Credentials(msgspec.Struct, frozen=True):
    """The credentials file: ``{"url": …, "api_key": …}``, readable by its owner only."""

    url: str
    api_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """``request_timeout_s``: longest wait for an answer, on top of what a call asks the server to wait.
    ``patient``: an API that can't be reached is tried again for a while (it may be restarting)."""

    url: str
    api_key: str | None = field(repr=False)
    request_timeout_s: float = 30.0
    patient: bool = True

    @property
    def loopback(self) -> bool:
        """Whether the API is on this host: then no proxy of the environment is asked."""
        host = (urlsplit(self.url).hostname or "").lower()
        return host in ("localhost", "::1") or host.startswith("127.")


def resolve(
    api_url: str | None = None,
    api_key: str | None = None,
    *,
    request_timeout: float = 30.0,
    patient: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration to use. Raises InvalidArgumentException for a URL that is not http(s).

    A key found in the credentials file goes only to that file's URL: it must not travel to another
    server because a variable or an argument names one.
    """
    env = os.environ if environ is None else environ
    url = api_url or env.get("WARMPOOL_API_URL")
    key = api_key or env.get("WARMPOOL_API_KEY")
    if not url or not key:
        saved = read_credentials(env)
        if saved is not None:
            url = url or saved.url
            if not key and _same(url, saved.url):
                key = saved.api_key
    return Config(
        url=_checked(url or DEFAULT_URL), api_key=key or None, request_timeout_s=request_timeout, patient=patient
    )


def credentials_path(env: Mapping[str, str]) -> Path:
    """$WARMPOOL_CREDENTIALS, else $XDG_CONFIG_HOME/warmpool/credentials.json, by default below ~/.config."""
    if env.get("WARMPOOL_CREDENTIALS"):
        return Path(env["WARMPOOL_CREDENTIALS"])
    home = env.get("XDG_CONFIG_HOME")
    base = Path(home) if home else Path(env.get("HOME") or Path.home()) / ".config"
    return base / "warmpool" / "credentials.json"


def read_credentials(env: Mapping[str, str]) -> Credentials | None:
    """The saved credentials, None without a file. A file that can't be used is an error, not skipped."""
    path = credentials_path(env)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuthenticationException(
            f"The credentials file {path} can't be read: {error.strerror}.",
            code="credentials_unreadable",
            hint="Fix its permissions, or set WARMPOOL_API_URL and WARMPOOL_API_KEY.",
        ) from error
    try:
        return msgspec.json.decode(data, type=Credentials)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AuthenticationException(
            f"The credentials file {path} is not {{url, api_key}} as JSON.",
            code="credentials_malformed",
            hint="Run `warmpool up` again, which writes it, or remove it.",
        ) from error


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgumentException(
            f"{url[:200]!r} is not a URL of the API.", code="invalid_url", hint=f"Give one like {DEFAULT_URL}."
        )
    return url.rstrip("/")


def _same(one: str, other: str) -> bool:
    a, b = urlsplit(one), urlsplit(other)
    return (a.scheme, a.netloc, a.path.rstrip("/")) == (b.scheme, b.netloc, b.path.rstrip("/"))
