"""What an attach may ask for, checked before anything is stored."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from controlplane.errors import Permanent
from controlplane.model.resources import MIB, Resources

MAX_LABELS = 64
MAX_LABEL_KEY_CHARS = 128
MAX_LABEL_VALUE_CHARS = 1024
# Records of ended sessions are kept by the hundred thousand, with their labels.
MAX_LABELS_CHARS = 8 * 1024
MAX_ENV = 256
MAX_ENV_VALUE_BYTES = 32 * 1024
MAX_ENV_BYTES = 128 * 1024
MAX_REF_CHARS = 255
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+@-]{0,254}")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceWish:
    """Sizes that an attach asks for; None leaves the template's own."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None

    def over(self, base: Resources) -> Resources:
        return Resources(
            memory_bytes=base.memory_bytes if self.memory_bytes is None else self.memory_bytes,
            cpu_cores=base.cpu_cores if self.cpu_cores is None else self.cpu_cores,
            pids=base.pids if self.pids is None else self.pids,
            disk_bytes=base.disk_bytes if self.disk_bytes is None else self.disk_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """One of ``pool`` and ``template`` is named; ``ref`` and ``resources`` go with a template only.

    A name of another tenant that shared it is written ``tenant/name``. ``ttl_s`` None: the template's.
    ``wait_s`` None: the deployment's default; how long the request itself is held.
    """

    pool: str | None = None
    template: str | None = None
    ref: str | None = None
    resources: ResourceWish | None = None
    ttl_s: float | None = None
    idle_timeout_s: float | None = None
    wait_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None

    def digest(self) -> str:
        """Names what is asked for, without how long to wait: guards an idempotency key."""
        content = asdict(self)
        del content["wait_s"], content["idempotency_key"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_request(request: AttachRequest) -> None:
    """Raise Permanent with a code of its own for each thing that can't be asked for."""
    if (request.pool is None) == (request.template is None):
        raise Permanent("invalid_target", "An attach names a pool or a template, exactly one of them.")
    if request.pool is not None and (request.ref is not None or request.resources is not None):
        raise Permanent(
            "invalid_target",
            "A pool has its own ref and resources.",
            hint="Name the template instead of the pool to choose them.",
        )
    check_duration(request.ttl_s, "ttl_s", "invalid_ttl")
    check_duration(request.idle_timeout_s, "idle_timeout_s", "invalid_idle_timeout")
    if request.ref is not None and not _REF.fullmatch(request.ref):
        raise Permanent("invalid_ref", f"{request.ref[:80]!r} is not a branch, tag or commit.")
    if request.resources is not None:
        _check_resources(request.resources)
    _check_labels(request.labels)
    _check_env(request.env)
    if request.idempotency_key is not None and not _IDEMPOTENCY_KEY.fullmatch(request.idempotency_key):
        raise Permanent(
            "invalid_idempotency_key", "An idempotency key is 1 to 200 printable ASCII characters without spaces."
        )


def check_duration(value: float | None, name: str, code: str) -> None:
    """None, or a finite number of seconds above 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise Permanent(code, f"{name} is {value:g}; it must be a number of seconds above 0.")


def _check_resources(wish: ResourceWish) -> None:
    checks = (
        ("memory_bytes", wish.memory_bytes, 16 * MIB),
        ("pids", wish.pids, 16),
        ("disk_bytes", wish.disk_bytes, 16 * MIB),
        ("cpu_cores", wish.cpu_cores, 0.01),
    )
    for name, value, least in checks:
        # Comparing first: a whole number may be too long for a float, and then neither isfinite nor :g takes it.
        if value is not None and not least <= value < 2**53:
            raise Permanent("invalid_resources", f"resources.{name} is {value!s:.40}; the least is {least:g}.")


def _check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise Permanent("invalid_labels", f"{len(labels)} labels; a session may have {MAX_LABELS}.")
    total = sum(len(key) + len(value) for key, value in labels.items())
    if total > MAX_LABELS_CHARS:
        raise Permanent("invalid_labels", f"The labels have {total} characters; at most {MAX_LABELS_CHARS} in all.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise Permanent(
                "invalid_labels",
                f"Label key {key[:80]!r} is not valid.",
                hint=f"Use up to {MAX_LABEL_KEY_CHARS} letters, digits and . _ / - inside.",
            )
        if len(value) > MAX_LABEL_VALUE_CHARS or "\0" in value:
            raise Permanent(
                "invalid_labels",
                f"The value of label {key!r} has {len(value)} characters; at most {MAX_LABEL_VALUE_CHARS}, and no NUL.",
            )


def _check_env(env: Mapping[str, str]) -> None:
    if len(env) > MAX_ENV:
        raise Permanent("invalid_env", f"{len(env)} environment variables; a session may have {MAX_ENV}.")
    total = 0
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise Permanent("invalid_env", f"{name[:80]!r} is not the name of an environment variable.")
        size = len(value.encode("utf-8", "surrogatepass"))
        total += size + len(name)
        if size > MAX_ENV_VALUE_BYTES or "\0" in value:
            raise Permanent(
                "invalid_env", f"The value of {name} has {size} bytes; at most {MAX_ENV_VALUE_BYTES}, and no NUL."
            )
    if total > MAX_ENV_BYTES:
        raise Permanent("invalid_env", f"The environment has {total} bytes; at most {MAX_ENV_BYTES}.")
