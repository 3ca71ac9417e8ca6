"""What a version is made of, and its name: the digest of that."""

from __future__ import annotations

import hashlib
import json
import re
from urllib.parse import urlsplit

from controlplane.errors import Permanent
from controlplane.ids import LineageKey, VersionId
from controlplane.model.template import BuildStep, Repository, Template

# Raised when the same inputs are built in another way, so that older images are not taken for new ones.
FORMAT = 1
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def version_inputs(template: Template, lineage: LineageKey, base_digest: str, commit: str | None) -> dict[str, str]:
    """Everything that decides what the file system of a version holds; the commit stands for its lock files.

    The lineage is one of them although it changes nothing inside: when one lineage moves on, its old
    version is superseded and collected, which must not take another lineage's image away.
    """
    repository = template.repository
    return {
        "format": str(FORMAT),
        "lineage": lineage,
        "base": base_digest,
        "repository": repository.url if repository is not None else "",
        "commit": commit or "",
        "setup": json.dumps([step.run for step in template.setup]),
        "env": json.dumps(dict(sorted(template.env.items()))),
        "docker": "true" if template.docker else "false",
    }


def version_id(inputs: dict[str, str]) -> VersionId:
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return VersionId("v-" + hashlib.sha256(canonical.encode()).hexdigest()[:20])


def wanted_ref(template: Template, lineage: LineageKey) -> str:
    """The ref of a lineage (``template@ref``), or the template's own."""
    own = lineage.partition("@")[2]
    return own or (template.repository.ref if template.repository is not None else "")


def is_commit(ref: str) -> bool:
    return _COMMIT.fullmatch(ref) is not None


def commit_of(listing: str, ref: str) -> str:
    """The commit that ``ref`` stands for by the output of ``git ls-remote``; git's own order: an exact name, a
    tag (what an annotated one points to), a branch. Permanent ``ref_not_found``."""
    found: dict[str, str] = {}
    for line in listing.splitlines():
        commit, _, name = line.partition("\t")
        if _COMMIT.fullmatch(commit):
            found[name.strip()] = commit
    for name in (f"{ref}^{{}}", ref, f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"):
        if name in found:
            return found[name]
    raise Permanent(
        "ref_not_found",
        f"The repository has no branch or tag {ref!r}.",
        hint="Name a branch, a tag or a full commit id that is on the server.",
    )


def repository_host(repository: Repository) -> str:
    """``host:port`` that a build must reach to fetch it."""
    parts = urlsplit(repository.url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def planned_steps(template: Template, *, resolve_s: float, clone_s: float, seal_s: float) -> tuple[BuildStep, ...]:
    """The steps of a build of this template, all pending."""
    steps = [BuildStep(name="resolve", command="base, build sandbox, commit", timeout_s=resolve_s)]
    if template.repository is not None:
        steps.append(BuildStep(name="clone", command=f"git fetch {template.repository.url}", timeout_s=clone_s))
    for number, step in enumerate(template.setup, start=1):
        steps.append(BuildStep(name=f"setup-{number}", command=step.run, timeout_s=step.timeout_s))
    steps.append(BuildStep(name="seal", command="seal the file system as an image", timeout_s=seal_s))
    steps.append(BuildStep(name="publish", command="make it the current version", timeout_s=60.0))
    return tuple(steps)
