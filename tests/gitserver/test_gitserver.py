from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .loading import SCRIPT, GitServer, git, make_repository


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_repository(tmp_path / "demo")
    git("clone", "-q", "--bare", str(tmp_path / "demo"), str(tmp_path / "bare.git"))
    return tmp_path


@pytest.fixture
def server(root: Path) -> Iterator[GitServer]:
    with GitServer(root) as running:
        yield running


@pytest.mark.parametrize("name", ["demo/.git", "bare.git"])
def test_a_repository_is_cloned_bare_or_not(root: Path, server: GitServer, name: str) -> None:
    git("clone", f"{server.url}/{name}", str(root / "clone"))
    assert git("rev-parse", "HEAD", cwd=root / "clone") == git("rev-parse", "HEAD", cwd=root / "demo")


def test_a_shallow_clone_and_a_fetch_of_one_commit_work(root: Path, server: GitServer) -> None:
    old = git("rev-parse", "HEAD", cwd=root / "demo")
    git("commit", "-q", "--allow-empty", "-m", "Second", cwd=root / "demo")
    git("clone", "-q", "--depth", "1", f"{server.url}/demo/.git", str(root / "clone"))
    assert git("rev-list", "--count", "HEAD", cwd=root / "clone") == "1"
    git("fetch", "-q", "--depth", "1", "origin", old, cwd=root / "clone")
    assert git("rev-parse", "FETCH_HEAD", cwd=root / "clone") == old


def test_a_request_body_sent_in_chunks_is_understood_as_git_sends_large_ones(root: Path, server: GitServer) -> None:
    list_refs = [b"0014command=ls-refs\n", b"0001", b"0000"]
    headers = {"Content-Type": "application/x-git-upload-pack-request", "Git-Protocol": "version=2"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for body in (iter(list_refs), b"".join(list_refs)):
        connection.request("POST", "/demo/.git/git-upload-pack", body, headers, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == 200 and b"refs/heads/main" in answer.read()
    connection.close()


def test_a_push_is_refused_and_changes_nothing(root: Path, server: GitServer) -> None:
    git("clone", "-q", f"{server.url}/bare.git", str(root / "clone"))
    before = git("rev-parse", "main", cwd=root / "bare.git")
    git("commit", "-q", "--allow-empty", "-m", "Mine", cwd=root / "clone")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        git("push", "origin", "main", cwd=root / "clone")
    assert "403" in caught.value.stderr and git("rev-parse", "main", cwd=root / "bare.git") == before


@pytest.mark.parametrize(
    "path", ["/missing.git/info/refs?service=git-upload-pack", "/../secret/.git/HEAD", "/%2e%2e/x"]
)
def test_what_is_not_below_the_root_is_not_served(root: Path, server: GitServer, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", path)
    assert connection.getresponse().status in (403, 404, 500)
    connection.close()


def test_the_program_says_where_it_serves_and_stops_when_told(root: Path) -> None:
    ready = root / "ready"
    command = [sys.executable, str(SCRIPT), "--root", str(root), "--port", "0", "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert time.monotonic() < deadline, "the ready file never appears"
            time.sleep(0.01)
        assert ready.read_text().strip() == url
        assert "refs/heads/main" in git("ls-remote", f"{url}/demo/.git")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_root_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2 and "not a folder" in done.stderr
