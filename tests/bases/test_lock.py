"""Locks: what they say, and that a damaged or hostile one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.bases.builder import recipe_digest
from controlplane.bases.lock import encode, read_lock, read_package_list
from controlplane.bases.source import default_images_dir
from controlplane.errors import Permanent

IMAGES = default_images_dir()


def lock_text(**changes: Any) -> str:
    package = {
        "name": "less",
        "version": "1:590-2",
        "arch": "amd64",
        "archive": "main",
        "path": "pool/main/l/less/less_590-2_amd64.deb",
        "size": 10,
        "sha256": "0" * 64,
    }
    body = {
        "format": 1,
        "suite": "bookworm",
        "arch": "amd64",
        "source_date_epoch": 1,
        "snapshot": "20260101T000000Z",
        "packages": [{**package, **{key: value for key, value in changes.items() if key in package}}],
    }
    return json.dumps({**body, **{key: value for key, value in changes.items() if key in body}})


def test_the_lock_that_comes_along_is_complete_for_its_package_list() -> None:
    lock = read_lock(IMAGES / "debian12/lock.json")
    names = {package.name for package in lock.packages}
    assert set(read_package_list(IMAGES / "debian12/packages.txt")) <= names
    assert len(names) == len(lock.packages)


def test_a_lock_read_and_written_again_is_the_same(tmp_path: Path) -> None:
    lock = read_lock(IMAGES / "debian12/lock.json")
    copy = tmp_path / "lock.json"
    copy.write_text(encode(lock))
    assert read_lock(copy) == lock
    assert copy.read_text() == (IMAGES / "debian12/lock.json").read_text()


def test_the_files_name_in_the_cache_has_no_epoch(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    path.write_text(lock_text())
    [package] = read_lock(path).packages
    assert (package.version, package.file_name) == ("1:590-2", "less_590-2_amd64.deb")


@pytest.mark.parametrize(
    "change",
    [
        {"path": "pool/../../etc/passwd.deb"},
        {"path": "/etc/passwd"},
        {"name": "--option"},
        {"sha256": "abc"},
        {"archive": "elsewhere"},
        {"suite": "a b"},
        {"packages": []},
        {"format": 2},
        {"snapshot": "../x"},
        {"size": None},
    ],
)
def test_a_lock_that_is_not_of_the_form_is_refused_with_what_to_do(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "lock.json"
    path.write_text(lock_text(**change))
    with pytest.raises(Permanent, match="images/lock") as caught:
        read_lock(path)
    assert caught.value.code == "base_lock_invalid"


def test_a_missing_lock_and_an_unknown_base_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Permanent) as caught:
        read_lock(tmp_path / "lock.json")
    assert caught.value.code == "base_lock_missing"
    for name in ("debian99", "../debian12", ""):
        with pytest.raises(Permanent):
            recipe_digest(name, IMAGES)


def test_the_recipes_digest_follows_every_input(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in ("prepare", "customize", "dpkg.cfg", "packages.txt"):
        (folder / name).write_text(name)
    (folder / "lock.json").write_text(lock_text())
    first = recipe_digest("tiny", tmp_path)
    assert recipe_digest("tiny", tmp_path) == first
    seen = {first}
    for name in ("prepare", "customize", "dpkg.cfg"):
        (folder / name).write_text("changed")
        seen.add(recipe_digest("tiny", tmp_path))
    (folder / "lock.json").write_text(lock_text(size=11))
    seen.add(recipe_digest("tiny", tmp_path))
    assert len(seen) == 5
