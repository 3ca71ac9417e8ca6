"""The SDK's types are those of the wire and of the API."""

from __future__ import annotations

import importlib

import msgspec
import pytest

from agents import wire
from controlplane.api.schemas import pools, sessions, templates, tenancy
from warmpool import types

SHARED = [name for name in types.__all__ if hasattr(wire, name)]
ANSWERS = [
    (types.Session, sessions.SessionOut),
    (types.QueuePlace, sessions.QueueOut),
    (types.Template, templates.TemplateOut),
    (types.LineageReport, templates.LineageOut),
    (types.Build, templates.BuildOut),
    (types.BuildStep, templates.BuildStepOut),
    (types.BuildLogs, templates.LogsOut),
    (types.LogChunk, templates.LogChunkOut),
    (types.Pool, pools.PoolOut),
    (types.PoolCounts, pools.CountsOut),
    (types.Decision, pools.DecisionOut),
    (types.Explanation, pools.ExplanationOut),
    (types.SandboxRecord, pools.SandboxOut),
    (types.RuntimeReport, pools.RuntimeOut),
    (types.Event, tenancy.EventOut),
    (types.EventsPage, tenancy.EventsOut),
    (types.WhoAmI, tenancy.WhoamiOut),
    (types.ApiKey, tenancy.KeyOut),
    (types.NewApiKey, tenancy.NewKeyOut),
    (types.Readiness, tenancy.ReadyOut),
]


@pytest.mark.parametrize("name", SHARED)
def test_a_wire_message_has_the_same_fields_types_and_defaults_in_the_sdk(name: str) -> None:
    ours, theirs = getattr(types, name), getattr(wire, name)

    def described(struct: type[msgspec.Struct]) -> dict[str, tuple[str, object, object]]:
        def default(value: object) -> object:
            return repr(value)

        return {
            field.name: (
                field.encode_name,
                repr(field.type).replace("agents.wire.messages", "*").replace("warmpool.types.commands", "*"),
                (default(field.default), field.required),
            )
            for field in msgspec.structs.fields(struct)
        }

    assert described(ours) == described(theirs)


def test_the_messages_that_matter_are_compared() -> None:
    assert {"ExecStart", "ExecStatus", "ExecEvent", "EventPage", "SignalRequest", "FileInfo", "FileList"} <= set(SHARED)


@pytest.mark.parametrize(("ours", "theirs"), ANSWERS, ids=lambda kind: kind.__name__)
def test_an_answer_of_the_api_has_a_field_in_the_sdk_for_each_of_its_own(ours: type, theirs: type) -> None:
    assert set(ours.__struct_fields__) == set(theirs.model_fields)  # type: ignore[attr-defined]


def test_importing_the_sdk_does_not_import_the_control_plane_nor_httpx() -> None:
    import subprocess
    import sys

    code = (
        "import sys, warmpool; "
        "print([m for m in sys.modules if m.split('.')[0] in ('controlplane', 'agents', 'httpx', 'pydantic')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
    assert importlib.import_module("warmpool").__version__
