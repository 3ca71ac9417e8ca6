"""Images: layers on disk in the id range of sandboxes, each with a manifest that names those below it.

An image is a directory ``images/<ref>/`` with ``manifest.json`` and ``layer/``; it appears by a rename,
whole. A base is an image without a parent.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from controlplane.errors import Conflict, Permanent, Retryable, WarmpoolError
from controlplane.runtime.local import records
from controlplane.runtime.local.idrange import IdRange, unpack
from controlplane.runtime.local.process import run
from controlplane.runtime.local.records import ImageRecord
from controlplane.runtime.port import Image

# Left for records, logs and what sandboxes that run write: with a full disk the store refuses every change.
_RESERVE_BYTES = 64 << 20


class ImageStore:
    """All images of one deployment. Callers hold the images lock."""

    def __init__(self, folder: Path, ids: IdRange) -> None:
        self._folder = folder
        self._ids = ids

    def base_ref(self, base: str, digest: str) -> str:
        # The id range is part of the name: a changed setting gets a base of its own.
        return records.check_ref(f"{base}-{digest[:16]}-{self._ids.start}")

    def has(self, ref: str) -> bool:
        return (self._folder / records.check_ref(ref) / "manifest.json").exists()

    def record(self, ref: str) -> ImageRecord:
        """Raises NotFound ``image_not_found``, Permanent ``image_id_range``."""
        found = records.read_image(self._folder / records.check_ref(ref))
        if found.id_start != self._ids.start:
            raise Permanent(
                "image_id_range",
                f"Image {ref} belongs to the id range from {found.id_start}, not {self._ids.start}.",
                hint="Set runtime.id_start back, or build the template again.",
            )
        return found

    def layers(self, ref: str) -> list[Path]:
        """Directories for an overlay's lowerdir, the uppermost first."""
        return [self._folder / layer / "layer" for layer in self.record(ref).layers]

    def list(self) -> list[Image]:
        return [as_image(found) for found in self._records()]

    async def add_base(self, ref: str, tar: Path, lock: int) -> Image:
        """Unpack ``tar`` as the image ``ref``. ``lock``: the caller's, which keeps it to one at a time; the
        unpacking process inherits it, so that after a crash of this one nobody works beside it."""
        scratch = self._folder / f".new-{ref}"
        shutil.rmtree(scratch, ignore_errors=True)
        _check_space(self._folder, tar.stat().st_size, f"the base {ref}")
        (scratch / "layer").mkdir(parents=True)
        try:
            await unpack(tar, scratch / "layer", self._ids, lock)
        except WarmpoolError:
            # On a full disk the store can't write either: nothing would come to clear it up later.
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            raise
        record = ImageRecord(
            ref=ref,
            parent=None,
            layers=[ref],
            id_start=self._ids.start,
            created_at=time.time(),
            size_bytes=tar.stat().st_size,
        )
        records.write(scratch / "manifest.json", record)
        scratch.rename(self._folder / ref)
        return as_image(record)

    async def seal(self, ref: str, parent: str, upper: Path, lock: int) -> Image:
        """Make ``upper`` the layer of a new image ``ref`` on ``parent``. Repeatable at every step.

        An upper directory of the same file system is moved; one on a disk of its own is copied.
        ``lock``: the caller's on ``ref``, inherited by the copying process. Raises Retryable ``disk_full``.
        """
        pending = self._folder / f".seal-{records.check_ref(ref)}"
        pending.mkdir(exist_ok=True)
        layer = pending / "layer"
        if not layer.exists():
            if upper.stat().st_dev == self._folder.stat().st_dev:
                upper.rename(layer)
            else:
                await _copy(upper, layer, lock)
        record = ImageRecord(
            ref=ref,
            parent=parent,
            layers=[ref, *self.record(parent).layers],
            id_start=self._ids.start,
            created_at=time.time(),
            size_bytes=await asyncio.to_thread(_size, layer),
        )
        records.write(pending / "manifest.json", record)
        # The sandbox's overlay did not sync; from here on the layer must outlive the host's crash.
        await run(["sync", "--file-system", str(pending)], timeout_s=300)
        pending.rename(self._folder / ref)
        return as_image(record)

    def retire(self, ref: str) -> None:
        """Take ``ref`` out of the set by one rename; ``remove`` then deletes it. Missing: success.

        Raises Conflict ``image_in_use`` while another image is built on it."""
        if not self.has(ref):
            return
        children = [found.ref for found in self._records() if ref in found.layers and found.ref != ref]
        if children:
            raise Conflict("image_in_use", f"Image {ref} is needed by image {children[0]}.")
        gone = self._folder / f".gone-{ref}"
        shutil.rmtree(gone, ignore_errors=True)
        (self._folder / ref).rename(gone)

    def remove(self, ref: str) -> None:
        """Delete what was retired, and what a crash left of an attempt to make it."""
        for remains in (f".gone-{ref}", f".seal-{ref}", f".new-{ref}"):
            shutil.rmtree(self._folder / remains, ignore_errors=True)

    def _records(self) -> Iterator[ImageRecord]:
        for folder in sorted(self._folder.iterdir()):
            if not folder.name.startswith(".") and (folder / "manifest.json").exists():
                yield records.read_image(folder)


def as_image(found: ImageRecord) -> Image:
    return Image(ref=found.ref, parent=found.parent, created_at=found.created_at, size_bytes=found.size_bytes)


async def _copy(upper: Path, layer: Path, lock: int) -> None:
    """A copy with owners, times, hard links, whiteouts and overlay's own attributes, put in place whole."""
    part = layer.with_name("layer.part")
    await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
    _check_space(part.parent, await asyncio.to_thread(_size, upper), "a layer")
    code, output = await run(["cp", "--archive", "--", str(upper), str(part)], timeout_s=900, pass_fds=(lock,))
    if code != 0:
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
        raise Retryable("disk_full", f"A layer could not be copied: {output.strip()[-500:]}", after_s=60)
    part.rename(layer)


def _check_space(folder: Path, size_bytes: int, what: str) -> None:
    """Raise Retryable ``disk_full`` before ``size_bytes`` more would take the last of what the store needs."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes + _RESERVE_BYTES:
        raise Retryable(
            "disk_full",
            f"There is not enough space in {folder} for {what}: it needs {size_bytes >> 20} MiB of {free_bytes >> 20}.",
            after_s=60,
            hint=f"Free {(size_bytes + _RESERVE_BYTES >> 20) + 1} MiB in the file system of the state folder.",
        )


def _size(layer: Path) -> int:
    total = 0
    for folder, _, names in os.walk(layer):
        for name in names:
            total += (Path(folder) / name).lstat().st_blocks * 512
    return total
