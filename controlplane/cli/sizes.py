"""Sizes as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti)?")
_FACTOR = {None: 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}


def parse_size(text: str) -> int:
    """Bytes of ``512Mi``. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with Ki, Mi, Gi or Ti, such as 512Mi")
    return int(match[1]) * _FACTOR[match[2]]
