"""The error answers that routes declare in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from controlplane.api.errors import MEDIA_TYPE
from controlplane.api.schemas.common import Problem

_MEANING = {
    400: "The request can't be fulfilled as it is: see `code`.",
    401: "The API key is missing, malformed, unknown or revoked.",
    403: "The key's role may not do this.",
    404: "It does not exist, or is not the caller's to see.",
    408: "The body did not come in time.",
    409: "The request contradicts the present state.",
    413: "The body is too large.",
    422: "The request does not have the expected form.",
    429: "The tenant's quota is used up; see Retry-After.",
    503: "It may succeed later; see Retry-After.",
}

Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    """The problems a route may answer with; 400 (a tenant that is no name), 401, 403, 422 and
    503 go with all, and 408 with 413."""
    return {
        status: {
            "description": _MEANING[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}},
        }
        for status in sorted({400, 401, 403, 422, 503, *statuses, *({408} if 413 in statuses else ())})
    }


def answers(status: int, description: str, model: type[Any] | None = None) -> Responses:
    """One further success."""
    return {status: {"description": description} | ({"model": model} if model else {})}


def raw(status: int, media_type: str, description: str) -> Responses:
    """A success whose body is not JSON."""
    schema = {"type": "string"} if media_type != "application/octet-stream" else {"type": "string", "format": "binary"}
    return {status: {"description": description, "content": {media_type: {"schema": schema}}}}
