"""A pool's decision as the JSON text that the store keeps, and back."""

from __future__ import annotations

import msgspec

from controlplane.model.actions import PoolDecision


class _Kept(msgspec.Struct, frozen=True):
    at: float
    decision: PoolDecision


_DECODER = msgspec.json.Decoder(_Kept)
_ENCODER = msgspec.json.Encoder()


def encode_decision(decision: PoolDecision, at: float) -> str:
    """``at``: epoch seconds at which the scheduler came to it."""
    return _ENCODER.encode(_Kept(at, decision)).decode()


def decode_decision(text: str) -> tuple[PoolDecision, float] | tuple[None, None]:
    """(None, None) for a text of another version: the next plan replaces it."""
    try:
        kept = _DECODER.decode(text)
    except msgspec.DecodeError:
        return None, None
    return kept.decision, kept.at
