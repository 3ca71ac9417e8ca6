"""Files of a session, streamed both ways."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from controlplane.api.deps import Platform, deps_of
from controlplane.api.routes.answers import errors, raw
from controlplane.api.routes.commands import wire
from controlplane.api.schemas.commands import FileInfoOut, FileListOut
from controlplane.api.streams import started_stream

router = APIRouter(prefix="/v1/sessions/{session_id}/files", tags=["files"])
Path = Annotated[str, Query(min_length=1, max_length=4096, description="Absolute, or relative to the workspace.")]
_BINARY = "application/octet-stream"


@router.get("", responses=errors(400, 404, 409) | raw(200, _BINARY, "The file's bytes."))
async def read(request: Request, acting: Platform, session_id: str, path: Path) -> Response:
    """Read a file."""
    return await started_stream(deps_of(request).machine.file_read(acting.tenant, session_id, path), _BINARY)


@router.put(
    "",
    response_model=FileInfoOut,
    responses=errors(400, 404, 409, 413),
    openapi_extra={
        "requestBody": {"required": True, "content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def write(
    request: Request,
    acting: Platform,
    session_id: str,
    path: Path,
    mode: Annotated[str | None, Query(pattern="^0?[0-7]{3,4}$", description="Octal, such as 0644.")] = None,
) -> Response:
    """Write a file, in one step: it is there whole or not at all. Missing parents are made."""
    info = await deps_of(request).machine.file_write(acting.tenant, session_id, path, request.stream(), mode)
    return wire(info)


@router.get("/list", response_model=FileListOut, responses=errors(400, 404, 409))
async def list_files(request: Request, acting: Platform, session_id: str, path: Path = ".") -> Response:
    """What is in a directory."""
    return wire(await deps_of(request).machine.file_list(acting.tenant, session_id, path))


@router.delete("", status_code=204, responses=errors(400, 404, 409))
async def delete(request: Request, acting: Platform, session_id: str, path: Path, recursive: bool = False) -> Response:
    """Delete a file or directory; a missing one is success."""
    await deps_of(request).machine.file_delete(acting.tenant, session_id, path, recursive)
    return Response(status_code=204)
