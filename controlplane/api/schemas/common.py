"""What the schemas share: bases, sizes, problems, and how models become answers."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from starlette.responses import Response

from controlplane.ids import TenantId
from controlplane.model.resources import Resources

_SIZE = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti)?")
_FACTOR = {None: 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}


def parse_size(value: Any) -> Any:
    """Bytes of ``"512Mi"``; other types are left for Pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("a size is a number of bytes, or one with Ki, Mi, Gi or Ti, such as 512Mi")
    return int(match[1]) * _FACTOR[match[2]]


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(Ki|Mi|Gi|Ti)?$"}]}
    ),
]


class In(BaseModel):
    """A request body: a field that is not known is an error, so that a typing error is not silence."""

    model_config = ConfigDict(extra="forbid")


class Out(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class ResourcesOut(Out):
    memory_bytes: int = Field(examples=[1073741824])
    cpu_cores: float = Field(examples=[1.0])
    pids: int = Field(examples=[512])
    disk_bytes: int | None = None


class ResourcesIn(In):
    """Sizes of a sandbox; what is left out is the template's own."""

    memory_bytes: Size | None = Field(default=None, examples=["512Mi"])
    cpu_cores: float | None = Field(default=None, examples=[1.0])
    pids: int | None = Field(default=None, examples=[256])
    disk_bytes: Size | None = Field(default=None, examples=["2Gi"])


class FieldError(Out):
    loc: list[str]
    msg: str
    type: str


class Problem(Out):
    """Every error, as application/problem+json (RFC 9457)."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What happened and what it means.")
    code: str = Field(description="Stable and machine-readable.", examples=["pool_not_found"])
    hint: str = Field(description="What to do; may be empty.")
    retry_after_s: float | None = Field(default=None, description="Seconds after which the same call may succeed.")
    errors: list[FieldError] | None = Field(default=None, description="With invalid_request: what is wrong where.")


def resources_out(resources: Resources) -> ResourcesOut:
    return ResourcesOut(
        memory_bytes=resources.memory_bytes,
        cpu_cores=resources.cpu_cores,
        pids=resources.pids,
        disk_bytes=resources.disk_bytes,
    )


def shown_name(key: str, reader: TenantId) -> str:
    """A key as its reader writes it: the bare name of one's own, ``tenant/name`` of another's."""
    owner, _, name = key.partition("/")
    return name if owner == reader else key


def reply(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The model as JSON, serialised once and not validated again."""
    return Response(model.__pydantic_serializer__.to_json(model), status, headers, "application/json")
