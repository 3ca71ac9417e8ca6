"""A host without space: builds fail with what to do, the space they took is given back, and it goes on after that."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.live import Live, live, state_folder, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
SMALL_MIB, LARGE_MIB = 160, 1600


@pytest.fixture
def cramped() -> Iterator[Live]:
    """A deployment whose state folder holds less than the base needs."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with state_folder() as folder:
        place = folder / "s"
        place.mkdir(mode=0o711)
        options = ["-t", "tmpfs", "-o", f"size={SMALL_MIB}m,mode=711"]
        subprocess.run(["mount", *options, "tmpfs", str(place)], check=True, timeout=10)
        try:
            settings = {"WARMPOOL_POOL__BACKOFF_BASE_S": "1", "WARMPOOL_POOL__MAX_FAILURES": "100"}
            with live(f"full-{os.getpid()}", place, settings=settings) as deployment:
                yield deployment
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=10)


def test_a_full_disk_fails_builds_with_what_to_do_until_there_is_space_again(cramped: Live) -> None:
    cramped.declare("full", min_ready=1, max_total=1)

    def failed() -> bool:
        with cramped.api() as api:
            report = api.templates.get("full").lineages[0]
        assert report.last_error_code == "disk_full", report
        assert report.last_error and "not enough space" in report.last_error
        return True

    until("a build has failed", failed, within_s=90)
    assert used_bytes(cramped) < 100 << 20
    assert cramped.http("GET", "/readyz").status_code == 200
    subprocess.run(["mount", "-o", f"remount,size={LARGE_MIB}m", str(cramped.folder)], check=True, timeout=10)
    cramped.filled("full", 1)
    cramped.remove("full")


def used_bytes(deployment: Live) -> int:
    at = os.statvfs(deployment.folder)
    return (at.f_blocks - at.f_bfree) * at.f_frsize
