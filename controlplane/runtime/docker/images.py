"""Images of one deployment in the engine: tags below ``warmpool-DEPLOYMENT/``, parents kept in labels.

A base is imported once per engine and tagged once per deployment, so that one deployment's deletions never
take another's base away.
"""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.errors import Conflict, Permanent
from controlplane.runtime.docker.engine import Engine, EngineImage, NameTakenError
from controlplane.runtime.docker.places import StatePlaces
from controlplane.runtime.port import Image, Progress

_LABEL_BASE = "warmpool.base_digest"
_LABEL_PARENT = "warmpool.parent"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Images:
    """Blocking; errors are the engine's."""

    def __init__(self, engine: Engine, places: StatePlaces, deployment: str) -> None:
        self._engine = engine
        self._places = places
        self._prefix = f"warmpool-{deployment}"

    def ref(self, hint: str) -> str:
        """The image's name for a version id. Raises Permanent ``invalid_image_ref``."""
        if not _TAG.fullmatch(hint):
            raise Permanent("invalid_image_ref", f"{hint[:80]!r} is no image name.")
        return f"{self._prefix}/version:{hint}"

    def find(self, ref: str) -> Image | None:
        found = self._engine.image(ref)
        return _image(ref, found) if found and ref.startswith(f"{self._prefix}/") else None

    def list(self) -> list[Image]:
        found = self._engine.images(reference=f"{self._prefix}/*")
        return [_image(tag, each) for each in found for tag in each.tags if tag.startswith(f"{self._prefix}/")]

    def ensure_base(self, base: str, digest: str, tar: Path, progress: Progress) -> Image:
        """Some seconds the first time."""
        ref = f"{self._prefix}/base:{base}-{digest[:12]}"
        with self._places.lock(f"base {digest}"):
            if (found := self.find(ref)) is not None:
                return found
            same = self._engine.images(labels={_LABEL_BASE: digest})
            originals = [each for each in same if _LABEL_PARENT not in each.labels]
            if originals:
                self._engine.tag(originals[0].id, ref)
            else:
                progress(f"importing the base {base} into the engine")
                self._engine.import_image(tar, ref, {_LABEL_BASE: digest})
        made = self.find(ref)
        if made is None:
            raise Conflict("image_in_use", f"Image {ref} was removed while it was being made.")
        return made

    def seal(self, container: str, ref: str, parent: str | None) -> Image:
        """An image of the stopped ``container``'s file system."""
        self._engine.commit(container, ref, {_LABEL_PARENT: parent or ""})
        found = self._engine.image(ref)
        if found is None:
            raise Conflict("image_in_use", f"Image {ref} was removed while it was being made.")
        return _image(ref, found)

    def delete(self, ref: str) -> None:
        """Missing, or another deployment's: nothing. Raises Conflict ``image_in_use`` for a child image."""
        if self.find(ref) is None:
            return
        child = next((image.ref for image in self.list() if image.parent == ref), None)
        if child is not None:
            raise Conflict("image_in_use", f"Image {ref} is needed by image {child}.")
        try:
            self._engine.remove_image(ref)
        except NameTakenError as error:
            raise Conflict("image_in_use", f"Image {ref} is in use: {error.message}") from error


def _image(ref: str, found: EngineImage) -> Image:
    return Image(
        ref=ref,
        parent=found.labels.get(_LABEL_PARENT) or None,
        created_at=found.created_at,
        size_bytes=found.size_bytes,
    )
