"""Putting the parts of a sandbox together on the host, and taking them apart again.

All of it blocks (about ten milliseconds, more for large deletions) and runs in threads. ``disassemble``
works on whatever a crash left, also on a sandbox that never came to be.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import Permanent
from controlplane.runtime import cgroups, inside
from controlplane.runtime.cgroups import Hierarchies
from controlplane.runtime.local import bundle, kernel, records
from controlplane.runtime.local.idrange import IdRange
from controlplane.runtime.local.records import SandboxPlace, SandboxRecord
from controlplane.runtime.port import SandboxSpec

_BACKLOG = 512
# The page size bounds the options of mount(2).
_LONGEST_OPTIONS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a sandbox is assembled from. ``layers``: lower directories, the uppermost first. ``cgroup``: its
    path below each hierarchy's root. ``ca_bundle``: a PEM file of the host to trust inside, or None.
    ``lock``: the sandbox's, which every process started here inherits: after a crash of this one, nobody may
    take the sandbox apart, or put it together anew, while one of them still works on its files."""

    spec: SandboxSpec
    place: SandboxPlace
    layers: list[Path]
    ids: IdRange
    hierarchies: Hierarchies
    cgroup: str
    agent: Path
    argv: tuple[str, ...]
    ca_bundle: Path | None
    lock: int
    now: float


def assemble(parts: Parts) -> socket.socket:
    """Everything up to the start of the first process; returns the listening socket of the door in.

    Raises OSError, Permanent ``limit_not_held`` or ``too_many_layers``.
    """
    place, spec = parts.place, parts.spec
    place.root.mkdir(mode=0o711)
    record = SandboxRecord(
        id=spec.id,
        image=spec.image,
        labels=dict(spec.labels),
        egress=spec.egress,
        created_at=parts.now,
    )
    records.write(place.record, record)
    _make_data(parts)
    _mount_overlay(parts)
    cgroups.create(parts.hierarchies, parts.cgroup, spec.resources, parts.ids.start)
    _write_daemon_config(parts)
    _write_bundle(parts)
    return _open_door(place)


def disassemble(place: SandboxPlace, remains: SandboxPlace, hierarchies: Hierarchies, cgroup: str, oci: Path) -> None:
    """End every process and remove every trace. Missing: success. Raises OSError.

    The OCI runtime's own delete is not used: it waits in steps of 100 ms for what cgroup.kill has done.
    """
    cgroups.kill(hierarchies, cgroup)
    cgroups.remove(hierarchies, cgroup)
    shutil.rmtree(oci, ignore_errors=True)
    for found in (place, remains):
        if found.root.exists():
            kernel.unmount(found.rootfs)
            kernel.unmount(found.data)
    # An earlier attempt may have been cut off during the deletion.
    shutil.rmtree(remains.root, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        place.root.rename(remains.root)
        shutil.rmtree(remains.root)


def stop(place: SandboxPlace, hierarchies: Hierarchies, cgroup: str) -> None:
    """End every process and take the file system out of use; what was written stays in ``place.upper``."""
    cgroups.kill(hierarchies, cgroup)
    kernel.unmount(place.rootfs)


def _make_data(parts: Parts) -> None:
    place, owner = parts.place, parts.ids.start
    place.data.mkdir(mode=0o711)
    if parts.spec.resources.disk_bytes is not None:
        _limit_disk(parts, parts.spec.resources.disk_bytes)
    for folder, mode, uid in (
        (place.upper, 0o755, owner),
        (place.work, 0o700, 0),
        (place.spool, 0o711, owner),
        (place.engine, 0o710, owner),
        (place.config, 0o700, owner),
        (place.door_in.parent, 0o700, 0),
        (place.door_out.parent, 0o711, 0),
        (place.bundle, 0o700, 0),
        (place.rootfs, 0o755, 0),
    ):
        folder.mkdir(mode=mode)
        if uid:
            os.chown(folder, uid, uid)


def _limit_disk(parts: Parts, size: int) -> None:
    """A sparse file with an ext4 of ``size`` bytes as ``data``. Raises Permanent ``limit_not_held``."""
    image = parts.place.disk_image
    try:
        make_disk_image(image, size, parts.lock)
        kernel.mount_image(image, parts.place.data)
        parts.place.data.chmod(0o711)
    except OSError as error:
        image.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC and "loop" not in str(error):
            raise
        if not parts.spec.trusted:
            raise Permanent(
                "limit_not_held",
                f"A disk limit cannot be held here: {error.strerror}.",
                hint="Leave disk out of the template's resources, or let an operator mark it trusted.",
            ) from error


def make_disk_image(image: Path, size: int, lock: int) -> None:
    """A sparse file of ``size`` bytes with an empty ext4. ``lock``: inherited by mkfs. Raises OSError."""
    with image.open("xb") as file:
        file.truncate(size)
    # No journal: a sandbox does not outlive a crash of its host.
    argv = ["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1"]
    done = subprocess.run(
        [*argv, str(image)], capture_output=True, text=True, timeout=60, check=False, pass_fds=(lock,)
    )
    if done.returncode != 0:
        raise OSError(errno.EIO, f"mkfs.ext4: {done.stderr.strip()[:200]}", str(image))


def _mount_overlay(parts: Parts) -> None:
    place = parts.place
    lower = ":".join(str(layer) for layer in parts.layers)
    # volatile: nothing of it survives a crash of the host anyway, so no write waits for the disk.
    # The rest keeps an upper directory usable as a layer, whatever this kernel's defaults are.
    fixed = "index=off,metacopy=off,redirect_dir=off,volatile"
    options = f"lowerdir={lower},upperdir={place.upper},workdir={place.work},{fixed}"
    if len(options) > _LONGEST_OPTIONS:
        raise Permanent("too_many_layers", f"Image {parts.spec.image} has {len(parts.layers)} layers, too many.")
    kernel.mount("overlay", place.rootfs, "overlay", data=options)


def _visible(parts: Parts) -> dict[str, str]:
    """Hierarchy → path inside, of those that the sandbox gets to see: an engine needs all of them, commands
    only those that limit, count and end them (each one costs time at every start of a command)."""
    found = cgroups.inside(parts.hierarchies)
    if parts.spec.docker:
        return found
    return {name: found[name] for name in cgroups.for_commands(found)}


def _write_daemon_config(parts: Parts) -> None:
    visible = _visible(parts)
    content = inside.daemon_config(
        parts.spec,
        listen={"fd": 3},
        egress_socket=parts.place.door_out.name,
        cgroups_version=parts.hierarchies.version,
        cgroups={name: visible[name] for name in cgroups.for_commands(visible)},
        ca_bundle=parts.ca_bundle is not None,
    )
    path = parts.place.config / "sandboxd.json"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        os.fchown(file.fileno(), parts.ids.start, parts.ids.start)


def _write_bundle(parts: Parts) -> None:
    place, spec = parts.place, parts.spec
    directories = parts.hierarchies.directories(f"{parts.cgroup}/{cgroups.DELEGATED}")
    binds = [
        (place.config, inside.CONFIG, True),
        (parts.agent, inside.AGENT, True),
        (place.spool, inside.SPOOL, False),
    ]
    if spec.egress:
        binds.append((place.door_out.parent, inside.DOOR_OUT, True))
    if parts.ca_bundle:
        binds.append((parts.ca_bundle, inside.CA_BUNDLE, True))
    if spec.docker:
        binds.append((place.engine, inside.ENGINE, False))
    given = bundle.BundleInput(
        hostname=spec.id,
        rootfs=place.rootfs,
        ids=parts.ids,
        machine=platform.machine(),
        cgroup=f"{parts.cgroup}/{cgroups.DELEGATED}",
        cgroup_version=parts.hierarchies.version,
        cgroup_mounts={str(directories[name]): path for name, path in _visible(parts).items()},
        binds=tuple(binds),
        argv=parts.argv,
        docker=spec.docker,
        shm_bytes=min(spec.resources.memory_bytes // 2, 1 << 30),
    )
    (place.bundle / "config.json").write_text(json.dumps(bundle.config(given)), encoding="utf-8")


def _open_door(place: SandboxPlace) -> socket.socket:
    """The host's own listening socket: the sandbox gets the descriptor and never sees the directory, so it
    cannot put something else in the path that the host connects to."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind(str(place.door_in))
        door.listen(_BACKLOG)
    except OSError:
        door.close()
        raise
    return door
