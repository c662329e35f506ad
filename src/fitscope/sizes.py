"""Parses and formats amounts of bytes."""

from __future__ import annotations

import math
import re

from fitscope.errors import WatchError

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse(size: int | float | str | None, name: str) -> int | None:
    """`"10 GB"`, `"512MiB"` or a number of bytes; None stays None (no limit)."""
    if size is None:
        return None
    many: float = 0
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)\s*", size)
        many = float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0
    elif isinstance(size, int | float) and not isinstance(size, bool):
        many = size
    if not 1 <= many < math.inf:
        raise WatchError(
            f"`{name}` to be a positive number of bytes", repr(size), 'Write it like "10 GB" or 512_000_000'
        )
    return int(many)


def show(size: float) -> str:
    """`1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
