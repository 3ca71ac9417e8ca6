"""Pools, templates, builds, events, keys, status: as tables and as JSON; the program as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from controlplane.cli.app import build_app
from tests.cli.program import PROGRAM, begin, invoke, invoke_json, process
from tests.sdk.contract import KEY, Served
from warmpool import Warmpool


@pytest.fixture
def declared(served: Served) -> Iterator[Served]:
    with Warmpool() as api:
        api.templates.put("demo", {"repository": {"url": "https://git.example/x.git"}, "setup": ["make"]})
        api.pools.put("demo", {"template": "demo", "min_ready": 2, "max_total": 5})
    yield served


@pytest.mark.parametrize(
    "command",
    [
        "pool ls",
        "pool show demo",
        "pool explain demo",
        "pool scale demo --min 3",
        "pool pin demo 4",
        "pool unpin demo",
        "pool apply other -t demo --min 1 --max 2",
        "template ls",
        "template show demo",
        "template build demo",
        "build ls",
        "build show bd-1",
        "sandbox ls",
        "session ls",
        "key create --note ci",
        "key ls",
        "status",
        "version",
        "pool rm demo",
        "template rm demo",
    ],
)
def test_every_command_speaks_to_people_and_with_json_to_programs(declared: Served, command: str) -> None:
    for people in (invoke(*command.split()),):
        assert people.exit_code == 0, people.output
        assert people.stdout or people.stderr
    document = invoke_json(*command.split())
    assert isinstance(document, dict)
    assert document


def test_a_pool_is_scaled_pinned_and_explained(declared: Served) -> None:
    assert invoke_json("pool", "scale", "demo", "--max", "7")["max_total"] == 7
    assert invoke_json("pool", "show", "demo")["min_ready"] == 2
    assert invoke_json("pool", "pin", "demo", "4")["pinned_ready"] == 4
    assert "4 pinned" in invoke("pool", "ls").stdout
    assert invoke_json("pool", "unpin", "demo")["pinned_ready"] is None
    assert "because      min_ready is 1" in invoke("pool", "explain", "demo").stdout


@pytest.mark.parametrize("arguments", ["pool scale demo", "pool pin demo -1", "pool apply x", "pool apply a b -t c"])
def test_half_said_changes_of_a_pool_are_usage_errors(declared: Served, arguments: str) -> None:
    assert invoke(*arguments.split()).exit_code == 2


def test_a_build_log_is_printed_followed_and_given_as_lines_of_json(served: Served) -> None:
    assert invoke("build", "logs", "bd-1").stdout == "Collecting flask\ninstalled\n"
    assert "bd-1 succeeded" in invoke("build", "logs", "-f", "bd-1").stderr
    lines = invoke("build", "logs", "bd-1", "--json").stdout.splitlines()
    assert "".join(json.loads(line)["text"] for line in lines) == "Collecting flask\ninstalled\n"


def test_events_are_printed_and_followed(served: Served) -> None:
    assert len(invoke("events").stdout.splitlines()) == 5
    assert [json.loads(line)["id"] for line in invoke("events", "--after", "3", "--json").stdout.splitlines()] == [
        "4",
        "5",
    ]
    following = begin("events", "-f", "--after", "2")
    assert following.stdout is not None
    assert "se-3" in following.stdout.readline()
    following.terminate()
    following.communicate(timeout=20)


def test_a_new_key_stands_alone_on_standard_output(served: Served) -> None:
    assert invoke("key", "create").stdout == "wp_k_secret\n"
    assert invoke("key", "revoke", "k0").exit_code == 0
    assert invoke("key", "revoke", "k9").exit_code == 3


def test_status_of_nothing_running_is_5_and_says_how_to_start(served: Served) -> None:
    ran = invoke("status", "--url", "http://127.0.0.1:1")
    assert ran.exit_code == 5
    assert "warmpool up" in ran.stderr
    assert json.loads(invoke("status", "--json", "--url", "http://127.0.0.1:1").stdout)["ready"] is False


def test_options_may_stand_before_or_after_the_command(declared: Served) -> None:
    for arguments in (("--json", "pool", "ls"), ("pool", "ls", "--json")):
        assert json.loads(invoke(*arguments).stdout)["pools"][0]["name"] == "demo"


def test_every_command_has_help_that_says_what_it_does() -> None:
    def walk(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        children = getattr(command, "commands", None)
        assert getattr(command, "help", None), f"{path} has no help"
        yield path
        for name, child in (children or {}).items():
            yield from walk(child, (*path, name))

    paths = list(walk(get_command(build_app()), ()))
    assert len(paths) > 40
    for path in [(), ("run",), ("pool", "apply"), ("session", "exec")]:
        shown = invoke(*path, "--help")
        assert shown.exit_code == 0
        assert "--json" in shown.stdout


def test_help_imports_neither_the_client_nor_the_service() -> None:
    heavy = ("warmpool", "httpx", "rich", "pydantic", "fastapi", "yaml", "redis")
    code = (
        "import sys\nsys.argv = ['warmpool', '--help']\nfrom controlplane.cli import main\n"
        f"try:\n    main()\nexcept SystemExit: pass\nprint([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stderr.strip() == "[]"
    assert "Exit codes:" in ran.stdout


def test_help_comes_at_once() -> None:
    took = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([*PROGRAM, "--help"], capture_output=True, timeout=60, check=True)
        took.append(time.monotonic() - began)
    # 0.1 s on an idle machine; the bound leaves room for a busy one.
    assert min(took) < 0.75


def test_a_credentials_file_is_all_the_configuration_needed(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"url": served.url, "api_key": KEY}))
    monkeypatch.setenv("WARMPOOL_CREDENTIALS", str(file))
    monkeypatch.delenv("WARMPOOL_API_URL")
    monkeypatch.delenv("WARMPOOL_API_KEY")
    assert process("run", "-q", "demo", "--", "echo hi").stdout == "hi\n"
