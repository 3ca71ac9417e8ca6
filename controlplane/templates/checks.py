"""What a template may say. Every field is hostile until it passed here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from controlplane.errors import Permanent
from controlplane.ids import check_name
from controlplane.model.resources import MIB, Resources
from controlplane.model.template import Repository, SetupStep, Template

MAX_REF_CHARS = 200
MAX_URL_CHARS = 2000
MAX_SETUP_STEPS = 64
MAX_SETUP_BYTES = 64 * 1024
MAX_SETUP_TOTAL_BYTES = 256 * 1024
MAX_STEP_TIMEOUT_S = 6 * 3600.0
MAX_ENV = 256
MAX_ENV_BYTES = 128 * 1024
MAX_ALLOW = 256
MAX_SHARED = 256
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_ALLOW = re.compile(rf"({_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")


_INTERNET_V6 = IPv6Network("2000::/3")
# Addresses that carry an IPv4 address inside, behind which any host may stand.
_CARRIERS = (IPv6Network("2002::/16"), IPv6Network("2001::/32"))


def check_template(template: Template, *, min_remaining_s: float) -> None:
    """Raise Permanent with a code of its own for each thing that can't be declared.

    ``min_remaining_s``: closer than this to its age limit a sandbox is not handed out."""
    check_name(template.name, "template")
    check_name(template.base, "base")
    if template.repository is not None:
        check_repository(template.repository)
    check_setup(template.setup)
    check_env(template.env)
    check_resources(template.resources)
    _check_allow(template.build_allow)
    check_seconds(template.session_ttl_s, "session_ttl_s", "invalid_ttl")
    check_seconds(template.idle_timeout_s, "idle_timeout_s", "invalid_idle_timeout")
    check_seconds(template.max_age_s, "max_age_s", "invalid_max_age")
    if template.max_age_s <= 2 * min_remaining_s:
        raise Permanent(
            "invalid_max_age",
            f"max_age_s is {template.max_age_s:g}: a sandbox would be too old to be handed out most of its life.",
            hint=f"Use more than {2 * min_remaining_s:g} seconds.",
        )
    if len(template.shared_with) > MAX_SHARED:
        raise Permanent("invalid_sharing", f"Shared with {len(template.shared_with)} tenants; at most {MAX_SHARED}.")
    for tenant in template.shared_with:
        if tenant != "*":
            check_name(tenant, "tenant")


def check_public_hosts(template: Template) -> None:
    """Permanent ``host_not_public`` if the template names this host's loopback or an address that is not of the
    internet: what builds reach there is for an operator to say. What names lead to is judged when they are used."""
    for host in _hosts(template):
        if not _is_public(host):
            raise Permanent(
                "host_not_public",
                f"{host[:80]!r} is not an address of the internet; a tenant's builds can't reach it.",
                hint="Name a host in a network that the operator made reachable (egress.reachable_networks), or have "
                "an operator put the template.",
            )


def _hosts(template: Template) -> Iterator[str]:
    if template.repository is not None:
        yield urlsplit(template.repository.url).hostname or ""
    for entry in template.build_allow:
        match = _ALLOW.fullmatch(entry)
        yield match[1].strip("[]") if match else ""


def _is_public(host: str) -> bool:
    name = host.lower().removesuffix(".")
    try:
        address = ip_address(name)
    except ValueError:
        return name != "localhost"
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    return _is_public_v6(address)


def _is_public_v6(address: IPv6Address) -> bool:
    carries = any(address in network for network in _CARRIERS)
    return address in _INTERNET_V6 and address.is_global and not carries


def check_repository(repository: Repository) -> None:
    url = repository.url
    if len(url) > MAX_URL_CHARS or any(char.isspace() or not char.isprintable() for char in url):
        raise Permanent("invalid_repository", "The repository url is too long or holds spaces or control characters.")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        # Other letters are left out since some of them mean ASCII ones, and so another host than they look like.
        usable = parts.scheme in ("http", "https") and host != "" and host.isascii() and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Permanent(
            "invalid_repository",
            f"{url[:200]!r} is not an http or https url.",
            hint="Builds reach repositories over http(s) only; write an international host name as xn--….",
        )
    if parts.username is not None or parts.password is not None:
        raise Permanent(
            "credentials_in_url",
            "The repository url holds credentials.",
            hint="Secrets never enter a sandbox: take them out of the url.",
        )
    check_ref(repository.ref)


def check_ref(ref: str) -> str:
    """``ref`` if git could take it as a branch, tag or commit, and no command line as an option."""
    bad = (
        not ref
        or len(ref) > MAX_REF_CHARS
        or ref.startswith("-")
        or any(ord(char) < 33 or ord(char) == 127 or char in "~^:?*[\\" for char in ref)
        or ".." in ref
        or ref.endswith(("/", ".lock"))
    )
    if bad:
        raise Permanent(
            "invalid_ref",
            f"{ref[:80]!r} is not a branch, tag or commit.",
            hint=f"Use 1 to {MAX_REF_CHARS} characters that git allows in a ref, not starting with '-'.",
        )
    return ref


def check_setup(setup: tuple[SetupStep, ...]) -> None:
    if len(setup) > MAX_SETUP_STEPS:
        raise Permanent("invalid_setup", f"{len(setup)} setup commands; a template may have {MAX_SETUP_STEPS}.")
    total = 0
    for number, step in enumerate(setup, start=1):
        size = len(step.run.encode("utf-8", "surrogatepass"))
        total += size
        if not step.run.strip() or size > MAX_SETUP_BYTES or "\0" in step.run:
            raise Permanent(
                "invalid_setup",
                f"Setup command {number} is empty, holds a NUL or has {size} bytes; at most {MAX_SETUP_BYTES}.",
            )
        check_seconds(step.timeout_s, f"timeout_s of setup command {number}", "invalid_timeout")
        if step.timeout_s > MAX_STEP_TIMEOUT_S:
            raise Permanent(
                "invalid_timeout",
                f"timeout_s of setup command {number} is {step.timeout_s:g}; at most {MAX_STEP_TIMEOUT_S:g}.",
            )
    if total > MAX_SETUP_TOTAL_BYTES:
        raise Permanent(
            "invalid_setup",
            f"The setup commands have {total} bytes; at most {MAX_SETUP_TOTAL_BYTES} in all.",
            hint="Put long scripts into the repository.",
        )


def check_env(env: Mapping[str, str]) -> None:
    if len(env) > MAX_ENV:
        raise Permanent("invalid_env", f"{len(env)} environment variables; a template may have {MAX_ENV}.")
    total = 0
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise Permanent("invalid_env", f"{name[:80]!r} is not the name of an environment variable.")
        if "\0" in value:
            raise Permanent("invalid_env", f"The value of {name} holds a NUL.")
        total += len(name) + len(value.encode("utf-8", "surrogatepass"))
    if total > MAX_ENV_BYTES:
        raise Permanent("invalid_env", f"The environment has {total} bytes; at most {MAX_ENV_BYTES}.")


def check_resources(resources: Resources) -> None:
    checks = (
        ("memory_bytes", resources.memory_bytes, 16 * MIB),
        ("cpu_cores", resources.cpu_cores, 0.01),
        ("pids", resources.pids, 16),
        ("disk_bytes", resources.disk_bytes, 16 * MIB),
    )
    for name, value, least in checks:
        # Comparing first: a whole number may be too long for a float, and then neither isfinite nor :g takes it.
        if value is not None and not least <= value < 2**53:
            raise Permanent("invalid_resources", f"resources.{name} is {value!s:.40}; the least is {least:g}.")


def check_seconds(value: float | None, name: str, code: str) -> None:
    """None, or a finite number of seconds above 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise Permanent(code, f"{name} is {value:g}; it must be a number of seconds above 0.")


def _check_allow(allow: tuple[str, ...]) -> None:
    if len(allow) > MAX_ALLOW:
        raise Permanent("invalid_build_allow", f"{len(allow)} hosts in build_allow; at most {MAX_ALLOW}.")
    for entry in allow:
        match = _ALLOW.fullmatch(entry) if len(entry) <= 260 else None
        if match is None or (match[2] is not None and not 0 < int(match[2]) < 65_536):
            raise Permanent(
                "invalid_build_allow",
                f"{entry[:80]!r} in build_allow is no host.",
                hint="Write exact hosts, 'index.example' or 'mirror.example:8080'; no patterns, no urls.",
            )
