"""What a template may say: every field is hostile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from controlplane.errors import Denied, NotFound, Permanent
from controlplane.ids import TenantId, template_key
from controlplane.model.resources import MIB, Resources
from controlplane.model.template import Repository, SetupStep, Template
from controlplane.runtime.port import Capabilities, Held
from controlplane.templates import TemplateService
from controlplane.templates.checks import check_ref, check_template
from tests.provisioning.plant import ACME, Plant

GOOD = Template(
    key=template_key(ACME, "demo"),
    tenant=ACME,
    name="demo",
    repository=Repository(url="https://git.example:8443/team/repo.git", ref="release/1.2"),
    setup=(SetupStep(run="pip install -e .", timeout_s=60),),
    env={"MODE": "test"},
    build_allow=("index.example", "files.example.org:8443", "[2606:4700::1111]:443"),
    shared_with=("other", "*"),
)


def check(**changes: Any) -> None:
    check_template(replace(GOOD, **changes), min_remaining_s=60.0)


def test_a_usual_template_passes() -> None:
    check()


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("invalid_name", {"name": "../etc"}),
        ("invalid_name", {"base": "debian 12"}),
        ("invalid_repository", {"repository": Repository(url="ssh://git@host/x")}),
        ("invalid_repository", {"repository": Repository(url="file:///etc/passwd")}),
        ("invalid_repository", {"repository": Repository(url="ext::sh -c id")}),
        ("invalid_repository", {"repository": Repository(url="https://host/a b")}),
        ("invalid_repository", {"repository": Repository(url="https://host/a\nb")}),
        ("invalid_repository", {"repository": Repository(url="https://")}),
        ("invalid_repository", {"repository": Repository(url="https://host:99999/x")}),
        ("credentials_in_url", {"repository": Repository(url="https://user:token@host/x")}),
        ("credentials_in_url", {"repository": Repository(url="https://token@host/x")}),
        ("invalid_ref", {"repository": Repository(url="https://host/x", ref="--upload-pack=touch /tmp/x")}),
        ("invalid_setup", {"setup": (SetupStep(run="  "),)}),
        ("invalid_setup", {"setup": (SetupStep(run="x" * 70_000),)}),
        ("invalid_setup", {"setup": (SetupStep(run="echo \0"),)}),
        ("invalid_setup", {"setup": (SetupStep(run="x" * 60_000),) * 5}),
        ("invalid_setup", {"setup": (SetupStep(run="true"),) * 65}),
        ("invalid_timeout", {"setup": (SetupStep(run="true", timeout_s=0),)}),
        ("invalid_timeout", {"setup": (SetupStep(run="true", timeout_s=math.nan),)}),
        ("invalid_timeout", {"setup": (SetupStep(run="true", timeout_s=1e9),)}),
        ("invalid_env", {"env": {"A B": "x"}}),
        ("invalid_env", {"env": {"A": "x\0"}}),
        ("invalid_env", {"env": {"A": "x" * 200_000}}),
        ("invalid_resources", {"resources": Resources(memory_bytes=0)}),
        ("invalid_resources", {"resources": Resources(cpu_cores=-1)}),
        ("invalid_resources", {"resources": Resources(cpu_cores=math.inf)}),
        ("invalid_resources", {"resources": Resources(pids=0)}),
        ("invalid_resources", {"resources": Resources(disk_bytes=MIB)}),
        ("invalid_build_allow", {"build_allow": ("*.example.org",)}),
        ("invalid_build_allow", {"build_allow": ("https://index.example",)}),
        ("invalid_build_allow", {"build_allow": ("index.example:0",)}),
        ("invalid_build_allow", {"build_allow": ("index.example\n",)}),
        ("invalid_ttl", {"session_ttl_s": 0}),
        ("invalid_ttl", {"session_ttl_s": -1}),
        ("invalid_idle_timeout", {"idle_timeout_s": 0}),
        ("invalid_max_age", {"max_age_s": 100}),
        ("invalid_name", {"shared_with": ("a/b",)}),
    ],
)
def test_what_cannot_be_declared_is_refused_with_its_own_code(code: str, changes: dict[str, Any]) -> None:
    with pytest.raises(Permanent) as caught:
        check(**changes)
    assert caught.value.code == code


@pytest.mark.parametrize("ref", ["", "-x", "a b", "a\x7f", "a..b", "a~1", "a^", "x" * 201, "a.lock", "dir/"])
def test_refs_that_git_or_a_command_line_would_misread_are_refused(ref: str) -> None:
    with pytest.raises(Permanent):
        check_ref(ref)


async def test_only_an_operator_marks_a_template_as_trusted_and_a_tenants_change_takes_it_away(plant: Plant) -> None:
    service = TemplateService(plant.store)
    await plant.add_template("other")
    with pytest.raises(Denied):
        await service.put(replace(GOOD, trusted=True), ops=False)
    assert (await service.put(replace(GOOD, trusted=True), ops=True)).trusted
    assert not (await service.put(GOOD, ops=False)).trusted


async def test_a_template_is_seen_by_its_owner_and_those_it_is_shared_with(plant: Plant) -> None:
    service = TemplateService(plant.store)
    await plant.add_template("own")
    key = (await service.put(replace(GOOD, shared_with=("friend",)), ops=False)).key
    friend, stranger = TenantId("friend"), TenantId("stranger")
    assert (await service.get(key, reader=friend)).key == key
    with pytest.raises(NotFound):
        await service.get(key, reader=stranger)
    assert [t.name for t in await service.list(reader=friend)] == ["demo"]
    assert [t.name for t in await service.list(reader=ACME)] == ["demo", "own"]
    assert await service.list(reader=stranger) == []


async def test_what_the_runtime_cannot_hold_is_refused_when_it_is_declared(plant: Plant) -> None:
    report = Capabilities(
        runtime="docker",
        usable=True,
        limits=(Held(name="disk", held=False, how="no loop devices", fix="load the loop module"),),
    )

    async def capabilities() -> Capabilities | None:
        return report

    service = TemplateService(plant.store, capabilities=capabilities)
    await plant.add_template("other")
    limited = replace(GOOD, resources=Resources(disk_bytes=64 * MIB))
    with pytest.raises(Permanent) as caught:
        await service.put(limited, ops=False)
    assert caught.value.code == "limit_not_held"
    assert "loop" in caught.value.hint
    assert (await service.put(replace(limited, trusted=True), ops=True)).trusted
    await service.put(GOOD, ops=False)
