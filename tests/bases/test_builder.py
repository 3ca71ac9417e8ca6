"""Building bases for real: reproducible, once for all who ask, and clear when a package is gone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane.bases.aptsources import Mirrors
from controlplane.bases.builder import ensure_base
from controlplane.bases.debs import fetch_packages
from controlplane.bases.lock import Lock, LockedPackage
from controlplane.bases.resolve import write_lock
from controlplane.bases.source import default_images_dir
from controlplane.errors import Permanent, Retryable

pytestmark = pytest.mark.real


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, Mirrors]]:
    """A mirror of our own: (its folder, the mirrors that lead to it alone)."""
    root = tmp_path / "mirror"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield root, Mirrors(main=(f"{url}/debian",), security=(f"{url}/security",))
    server.shutdown()
    thread.join()
    server.server_close()


def locked(*names: str) -> Lock:
    packages = tuple(
        LockedPackage(
            name=name,
            version="1.0+x~1",
            arch="all",
            archive="main",
            path=f"pool/main/{name}_1.0+x~1_all.deb",
            size=len(content(name)),
            sha256=hashlib.sha256(content(name)).hexdigest(),
        )
        for name in names
    )
    return Lock(suite="bookworm", arch="amd64", source_date_epoch=1, snapshot="20260101T000000Z", packages=packages)


def content(name: str) -> bytes:
    return f"content of {name}".encode() * 50


def publish(folder: Path, name: str, body: bytes | None = None) -> None:
    path = folder / f"pool/main/{name}_1.0+x~1_all.deb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content(name) if body is None else body)


async def test_packages_are_fetched_once_and_then_found_without_a_network(
    tmp_path: Path, mirror: tuple[Path, Mirrors]
) -> None:
    root, mirrors = mirror
    publish(root / "debian", "one")
    publish(root / "debian", "two")
    paths = await fetch_packages(locked("one", "two"), tmp_path / "debs", mirrors, print)
    assert {path.read_bytes() for path in paths.values()} == {content("one"), content("two")}
    shutil.rmtree(root / "debian")
    assert await fetch_packages(locked("one", "two"), tmp_path / "debs", mirrors, print) == paths


async def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, mirror: tuple[Path, Mirrors]) -> None:
    root, mirrors = mirror
    publish(root / "debian", "one")
    [path] = (await fetch_packages(locked("one"), tmp_path / "debs", mirrors, print)).values()
    path.write_bytes(content("one")[:-1] + b"!")
    await fetch_packages(locked("one"), tmp_path / "debs", mirrors, print)
    assert path.read_bytes() == content("one")


async def test_a_package_that_left_the_mirror_is_taken_from_the_archive_of_old_ones(
    tmp_path: Path, mirror: tuple[Path, Mirrors]
) -> None:
    root, mirrors = mirror
    archive = mirrors.main[0].removesuffix("/debian") + "/old/{archive}/{moment}/"
    publish(root / "debian", "one")
    publish(root / "old/debian/20260101T000000Z", "two")
    paths = await fetch_packages(locked("one", "two"), tmp_path / "debs", mirrors, print, archive)
    assert all(path.exists() for path in paths.values())


async def test_a_package_that_is_nowhere_is_named_with_what_to_do(tmp_path: Path, mirror: tuple[Path, Mirrors]) -> None:
    root, mirrors = mirror
    publish(root / "debian", "one")
    publish(root / "debian", "two", b"another content of the same name")
    with pytest.raises(Permanent, match=r"two 1\.0\+x~1.*images/lock.*build.package_archive") as caught:
        await fetch_packages(locked("one", "two"), tmp_path / "debs", mirrors, print)
    assert caught.value.code == "base_package_gone"
    assert "one" not in caught.value.message.split("has ")[1].split(" any")[0]


async def test_no_mirror_at_all_may_pass(tmp_path: Path) -> None:
    nowhere = Mirrors(main=("http://127.0.0.1:1/d",), security=("http://127.0.0.1:1/s",))
    with pytest.raises(Retryable) as caught:
        await fetch_packages(locked("one", "two"), tmp_path / "debs", nowhere, print)
    assert caught.value.code == "mirror_unreachable"


async def test_a_host_that_names_no_mirror_is_told_how_to_name_one(
    tmp_path: Path, mirror: tuple[Path, Mirrors]
) -> None:
    root, mirrors = mirror
    with pytest.raises(Permanent, match=r"sources\.list") as caught:
        await fetch_packages(locked("one"), tmp_path / "debs", Mirrors(security=mirrors.security), print)
    assert caught.value.code == "no_debian_mirror"
    publish(root / "debian", "one")
    await fetch_packages(locked("one"), tmp_path / "debs", Mirrors(main=mirrors.main), print)
    await fetch_packages(locked("one"), tmp_path / "debs", Mirrors(), print)


async def test_a_large_fetch_tells_how_far_it_is(tmp_path: Path, mirror: tuple[Path, Mirrors]) -> None:
    root, mirrors = mirror
    bodies = {name: os.urandom(9_000_000) for name in ("one", "two", "three")}
    packages = []
    for package in locked(*bodies).packages:
        body = bodies[package.name]
        publish(root / "debian", package.name, body)
        packages.append(replace(package, size=len(body), sha256=hashlib.sha256(body).hexdigest()))
    said: list[str] = []
    lock = replace(locked("one"), packages=tuple(packages))
    await fetch_packages(lock, tmp_path / "debs", mirrors, said.append)
    assert said[0] == "fetching 3 packages, 27 MB" and said[-1] == "fetched 27 of 27 MB"


async def test_missing_tools_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    images = tiny_images(tmp_path)
    shutil.copy(default_images_dir() / "debian12/lock.json", images / "debian12/lock.json")
    script = (
        "import asyncio, sys; from pathlib import Path; from controlplane.bases.builder import ensure_base\n"
        "cache, images = map(Path, sys.argv[1:])\n"
        "asyncio.run(ensure_base('debian12', cache_dir=cache, images_dir=images, progress=print))"
    )
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(tmp_path / "cache"), str(images)),
        env={**os.environ, "PATH": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await child.communicate()
    assert b"apt-get install -y mmdebstrap" in errors


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_same_lock_gives_the_same_digest_and_is_built_once(tmp_path: Path) -> None:
    images = tiny_images(tmp_path)
    lock = write_lock("debian12", images)
    assert write_lock("debian12", images) == lock
    builds: list[str] = []
    first = tmp_path / "first"
    together = [ensure_base("debian12", cache_dir=first, images_dir=images, progress=builds.append) for _ in range(3)]
    one, *others = await asyncio.gather(*together)
    assert others == [one, one]
    assert [line for line in builds if line.startswith("installing")] == [f"installing {len(lock.packages)} packages"]
    assert builds.index("installed 20 %") < builds.index("installed 80 %") < builds.index("packing the base")
    assert hashlib.sha256(one.rootfs_tar.read_bytes()).hexdigest() == one.digest
    assert_lean(one.rootfs_tar)

    second = tmp_path / "second"
    shutil.copytree(first / "debs", second / "debs")
    await kill_while_it_installs(second, images)
    again = await ensure_base("debian12", cache_dir=second, images_dir=images, progress=builds.append)
    assert again.digest == one.digest
    assert sorted(path.name for path in (first / "bases").iterdir()) == sorted(
        path.name for path in (second / "bases").iterdir()
    )


async def kill_while_it_installs(cache: Path, images: Path) -> None:
    """kill -9 of a builder; passes when no process and no mount of its is left."""
    script = (
        "import asyncio, sys; from pathlib import Path; from controlplane.bases.builder import ensure_base\n"
        "cache, images = map(Path, sys.argv[1:])\n"
        "say = lambda line: print(line, flush=True)\n"
        "asyncio.run(ensure_base('debian12', cache_dir=cache, images_dir=images, progress=say))"
    )
    builder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(cache), str(images)), stdout=asyncio.subprocess.PIPE
    )
    assert builder.stdout is not None
    async for line in builder.stdout:
        if line.startswith(b"installed 20 %"):
            break
    assert left_of(cache) != []
    builder.kill()
    await builder.wait()
    async with asyncio.timeout(20):
        while left_of(cache):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def left_of(cache: Path) -> list[str]:
    """Command lines of processes, and mounts, that name the folder."""
    found = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(cache) in line]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(cache) in line and int(process.name) != os.getpid():
                found.append(line)
    return found


def assert_lean(tar: Path) -> None:
    """It names no server, and holds neither the packages it was made of nor what only people read."""
    with tarfile.open(tar) as content:
        sources = content.extractfile("./etc/apt/sources.list")
        assert sources is not None and b"://" not in sources.read()
        names = content.getnames()
    assert [name for name in names if name.endswith(".deb")] == []
    assert [name for name in names if name.startswith("./usr/share/man/man")] == []


def tiny_images(tmp_path: Path) -> Path:
    """The real recipe with next to nothing on its list."""
    images = tmp_path / "images"
    shutil.copytree(default_images_dir() / "debian12", images / "debian12")
    (images / "debian12/packages.txt").write_text("apt\nca-certificates\npython3-minimal\nusr-is-merged\npasswd\n")
    return images
