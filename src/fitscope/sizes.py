"""Parses and formats amounts of bytes."""

from __future__ import annotations

import re

from fitscope.errors import WatchError

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse(size: int | float | str | None, name: str) -> int | None:
    """`"10 GB"`, `"512MiB"` or a number of bytes; None stays None (no limit)."""
    if size is None:
        return None
    if isinstance(size, int | float) and not isinstance(size, bool) and size > 0:
        return int(size)
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]+)\s*", size) if isinstance(size, str) else None
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise WatchError(
            f"`{name}` to be a number of bytes", repr(size), 'Write it like "10 GB" or 512_000_000'
        )
    return int(float(match.group(1)) * unit)


def show(size: float) -> str:
    """`1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
