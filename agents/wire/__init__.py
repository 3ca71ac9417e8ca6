"""The protocol between the control plane and sandboxd: message types, tokens, limits.

Belongs here: the types of requests and answers, the token format, and the version of both. Does
not belong here: transport, and any behaviour. Both sides import it, so it needs only msgspec.

Transport is HTTP/1.1 over the sandbox's door. Bodies are JSON. Every request but ``GET /v1/hello``
carries ``Authorization: Bearer TOKEN`` (see ``agents.wire.token``). Errors are ``Problem`` bodies.

| call | body → answer |
|---|---|
| GET /v1/hello | → Hello (no token: identifies protocol only) |
| GET /v1/ready?wait_s=S | → Ready (waits up to S seconds for ready) |
| POST /v1/bind | Bind → Bound (idempotent per claim id; another claim id: 409 ``already_bound``) |
| GET /v1/binding | → Binding (who holds this sandbox; used to rebuild state) |
| POST /v1/exec | ExecStart → ExecStatus (a known id answers that command's status, starting nothing) |
| GET /v1/exec | → ExecList |
| GET /v1/exec/{id} | → ExecStatus |
| GET /v1/exec/{id}/events?after=SEQ&wait_s=S&limit=N | → EventPage |
| GET /v1/exec/{id}/stream?after=SEQ | → one ExecEvent a line (application/x-ndjson), ends after ``closed`` |
| POST /v1/exec/{id}/stdin?eof=0|1 | raw bytes → 204 |
| POST /v1/exec/{id}/signal | SignalRequest → ExecStatus |
| GET /v1/files?path=P | → raw bytes (application/octet-stream), or 404/400 Problem |
| PUT /v1/files?path=P&mode=0644 | raw bytes → FileInfo (atomic; parents made) |
| GET /v1/files/list?path=P | → FileList |
| DELETE /v1/files?path=P&recursive=0|1 | → 204 (missing: 204) |
"""

from agents.wire.messages import (
    PROTOCOL_VERSION,
    Bind,
    Binding,
    Bound,
    EventPage,
    ExecEvent,
    ExecLimits,
    ExecList,
    ExecStart,
    ExecStatus,
    FileInfo,
    FileList,
    Hello,
    Problem,
    Ready,
    SignalRequest,
)
from agents.wire.token import TokenError, binding_proof, mint, sandbox_key, verify

__all__ = [
    "PROTOCOL_VERSION",
    "Bind",
    "Binding",
    "Bound",
    "EventPage",
    "ExecEvent",
    "ExecLimits",
    "ExecList",
    "ExecStart",
    "ExecStatus",
    "FileInfo",
    "FileList",
    "Hello",
    "Problem",
    "Ready",
    "SignalRequest",
    "TokenError",
    "binding_proof",
    "mint",
    "sandbox_key",
    "verify",
]
