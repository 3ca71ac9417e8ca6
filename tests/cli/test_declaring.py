"""Files of templates and pools: read, refused with the place, applied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.api.schemas.pools import PoolIn
from controlplane.api.schemas.templates import TemplateIn
from controlplane.cli import declaration
from controlplane.cli.declaration import DeclarationError, read_declaration
from tests.cli.program import invoke, invoke_json
from tests.sdk.contract import Served

GOOD = """\
templates:
  demo:
    base: debian12
    repository: {url: "https://git.example/demo.git", ref: 1.0}
    setup:
      - pip install -e .
      - {run: make, timeout_s: 90}
    env: {PORT: 8080, YES: yes}
    resources: {memory_bytes: 512Mi, cpu_cores: 0.5, disk_bytes: 1073741824}
    docker: false
    shared_with: ["*"]
pools:
  demo: {template: demo, min_ready: 2, max_total: 10}
"""


def test_a_declaration_becomes_the_bodies_to_send() -> None:
    found = read_declaration(GOOD)
    assert found.templates["demo"] == {
        "base": "debian12",
        "repository": {"url": "https://git.example/demo.git", "ref": "1.0"},
        "setup": ["pip install -e .", {"run": "make", "timeout_s": 90.0}],
        "env": {"PORT": "8080", "YES": "yes"},
        "resources": {"memory_bytes": 512 * 1024**2, "cpu_cores": 0.5, "disk_bytes": 1073741824},
        "docker": False,
        "shared_with": ["*"],
    }
    assert found.pools["demo"] == {"template": "demo", "min_ready": 2, "max_total": 10}
    TemplateIn.model_validate(found.templates["demo"])
    PoolIn.model_validate(found.pools["demo"])


def test_every_field_of_the_api_can_be_declared() -> None:
    reader = declaration._Reader()
    for name, kind, check in (("templates", TemplateIn, "_TEMPLATE"), ("pools", PoolIn, "_POOL")):
        for field in kind.model_fields:
            node = declaration.yaml.compose(f"{{{field}: null}}", Loader=declaration.yaml.SafeLoader)
            getattr(declaration, check)(reader, node, name)
    assert [problem for problem in reader.problems if "has no" in problem] == []


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("templates:\n  demo:\n    memory: 1Gi\n", "3:5", "demo has no 'memory'"),
        ("pools:\n  demo: {template: x, min_redy: 1}\n", "2:23", "did you mean 'min_ready'?"),
        ("pools:\n  demo: {template: x, min: 1}\n", "2:23", "did you mean 'min_ready'?"),
        ("templates:\n  demo:\n    resources: {memory: 1}\n", "3:17", "did you mean 'memory_bytes'?"),
        ("template: {}\n", "1:1", "did you mean 'templates'?"),
        ("templates:\n  demo:\n    resources: {memory_bytes: lots}\n", "3:31", "such as 512Mi"),
        ("templates:\n  demo:\n    resources: {memory_bytes: -1}\n", "3:31", "such as 512Mi"),
        ("templates:\n  demo: {docker: perhaps}\n", "2:18", "true or false"),
        ("templates:\n  demo: {setup: make}\n", "2:17", "a list"),
        ("templates:\n  demo: {setup: [{timeout_s: 1}]}\n", "2:18", "needs 'run'"),
        ("templates:\n  demo: {repository: {ref: x}}\n", "2:22", "needs 'url'"),
        ("pools:\n  demo: {min_ready: 1}\n", "2:9", "needs 'template'"),
        ("pools:\n  demo: {template: x, min_ready: 1.5}\n", "2:34", "a whole number"),
        ("pools:\n  a: {template: x}\n  a: {template: y}\n", "3:3", "twice"),
        ("pools: [a]\n", "1:8", "a mapping"),
        ("pools:\n  ? [a]\n  : {}\n", "2:5", "is to be text"),
        ("pools:\n\tdemo: {}\n", "2:1", ""),
        ("a: &a [*a, *b]\n", "1:12", "b"),
        ("", "1:1", "empty"),
        ("- x\n", "1:1", "a mapping"),
        ("x: !!python/object/apply:os.system ['true']\n", "1:1", "has no 'x'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_column(text: str, place: str, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        read_declaration(text, "f.yaml")
    assert any(p.startswith(place + ":") and said in p for p in caught.value.problems), caught.value.problems
    assert str(caught.value).startswith("f.yaml:")


def test_all_problems_of_a_file_are_said_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        read_declaration("templates: {a: {bse: x}, b: {docker: 3}}\npools: {c: {}}\n")
    assert len(caught.value.problems) == 3


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_declaration(text)
    except DeclarationError as error:
        assert error.problems


def test_applying_says_what_it_changed(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD)
    first = invoke("apply", "-f", str(file))
    assert (first.exit_code, first.stderr) == (0, "template demo: created\npool demo: created\n")
    assert {a["change"] for a in invoke_json("apply", "-f", str(file))["applied"]} == {"unchanged"}
    file.write_text(GOOD.replace("min_ready: 2", "min_ready: 3"))
    assert "pool demo: changed" in invoke("apply", "-f", str(file)).stderr
    assert "template" not in invoke("pool", "apply", "-f", str(file)).stderr
    assert "pool" not in invoke("template", "apply", "-f", str(file)).stderr
    assert invoke("apply", "-f", "-", stdin=GOOD).exit_code == 0


def test_a_wrong_file_changes_nothing(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD + "  other: {templat: x}\n")
    ran = invoke("apply", "-f", str(file))
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert f"{file}:14:11: other has no 'templat'; did you mean 'template'?" in ran.stderr
    assert served.faults.seen == []
    told = json.loads(invoke("apply", "-f", str(file), "--json").stdout)
    assert told["error"]["code"] == "invalid_file"


def test_a_dry_run_sends_nothing(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD)
    assert "template demo: checked" in invoke("apply", "-f", str(file), "--dry-run").stderr
    assert served.faults.seen == []


def test_a_missing_file_is_an_error_of_one_line(served: Served) -> None:
    ran = invoke("apply", "-f", "/nope.yaml")
    assert (ran.exit_code, ran.stderr) == (1, "error: /nope.yaml: No such file or directory\n")


def test_names_that_the_file_does_not_declare_are_refused(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(GOOD)
    assert invoke("pool", "apply", "-f", str(file), "nope").exit_code == 2
    assert served.faults.seen == []
