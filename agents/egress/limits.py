"""The gateway's limits on what a sandbox can make it hold or wait for."""

from __future__ import annotations

from dataclasses import dataclass

# Per direction of a connection: the reader holds up to twice its limit, the writer the rest.
READ_LIMIT_BYTES = 64 * 1024
WRITE_LIMIT_BYTES = 128 * 1024
CHUNK_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``head_s`` bounds the arrival of one request head, ``idle_s`` a connection on which nothing moves,
    ``resolve_s`` one look-up, ``connect_s`` one attempt on one address, ``linger_s`` how long a peer may take
    to read the last of an answer. ``connections`` is the cap of one door."""

    head_s: float = 10.0
    idle_s: float = 300.0
    resolve_s: float = 5.0
    connect_s: float = 10.0
    linger_s: float = 2.0
    connections: int = 256
