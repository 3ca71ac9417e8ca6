"""Reading settings from all their sources, handing them to child processes, and the secrets on disk.

Called by bootstrap and the supervisor. Does not build anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from controlplane.errors import Permanent
from controlplane.settings import Settings


def load_settings(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Settings from file, environment and ``flags`` (dotted names; they win). Permanent ``invalid_settings``."""
    if config is not None:
        os.environ["WARMPOOL_CONFIG"] = str(config.resolve())
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        group, _, leaf = name.rpartition(".")
        if group:
            nested.setdefault(group, {})[leaf] = value
        else:
            nested[leaf] = value
    try:
        return Settings(**nested)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise Permanent(
            "invalid_settings",
            "The settings are not valid: " + "; ".join(lines) + ".",
            hint="`warmpool settings` lists every setting and where it can be set.",
        ) from error
    except (SettingsError, OSError, ValueError) as error:
        raise Permanent("invalid_settings", f"The settings can't be read: {error}.") from error


def settings_environment(settings: Settings) -> dict[str, str]:
    """Environment that gives a child process exactly these settings."""
    found: dict[str, str] = {}
    _flatten(settings.model_dump(mode="json"), "WARMPOOL_", found)
    return found


def _flatten(document: Mapping[str, Any], prefix: str, into: dict[str, str]) -> None:
    for name, value in document.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{name.upper()}__", into)
        elif value is not None:
            into[prefix + name.upper()] = json.dumps(value) if isinstance(value, list) else str(value)


def deployment_secret(settings: Settings) -> bytes:
    """32 random bytes, made once per state folder; keys of doors and hashes of API keys derive from them.

    Roles on several hosts share it by copying the file (0600)."""
    path = settings.secret_file
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    if not path.exists():
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            write_private(draft, secrets.token_hex(32) + "\n")
            # A link fails if another role was first, and never shows a half-written file.
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(draft)
            draft.unlink()
        except PermissionError as error:
            raise Permanent(
                "state_dir_not_writable", f"{path.parent} can't be written.", hint="Choose another --state-dir."
            ) from error
    return _read_secret(path)


def _read_secret(path: Path) -> bytes:
    try:
        value = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise Permanent(
            "secret_unreadable",
            f"The deployment secret {path} can't be read: {error}.",
            hint="Restore it from a backup; without it sandboxes and API keys can't be proven.",
        ) from error
    if len(value) != 32:
        raise Permanent("secret_unreadable", f"The deployment secret {path} is not 32 bytes in hex.")
    return value


def credentials_file(settings: Settings) -> Path:
    """Where the operator's address and key are kept; the SDK and CLI read the one of the default deployment."""
    if settings.deployment != "default":
        return settings.state_dir / "credentials.json"
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "warmpool" / "credentials.json"


def read_credentials(settings: Settings) -> dict[str, str]:
    try:
        found = json.loads(credentials_file(settings).read_text())
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def write_credentials(settings: Settings, *, url: str, api_key: str) -> None:
    path = credentials_file(settings)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(path, json.dumps({"url": url, "api_key": api_key}, indent=1) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace the file at once, readable by its owner only."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
