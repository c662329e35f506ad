"""Packs arrays and facts into bytes that are small and that the page unpacks quickly (static/pack.js mirrors this).

    4 bytes   length of the header, little-endian
    header    JSON: {"facts": …, "arrays": [[name, type, shape], …]}, blanks to a multiple of 8
    arrays    in that order, each filled up to a multiple of 8 bytes

Types are those of JavaScript's typed arrays. `uint16` is kept as differences: of each number to the one on its left,
in the first column to the one above; as 0, -1, 1, -2, … → 0, 1, 2, 3, …; all high bytes, then all low ones. That
compresses far better.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TYPES = {"uint8": "u1", "uint16": "<u2", "float32": "<f4", "float64": "<f8"}


def pack(facts: Any, arrays: Mapping[str, Array]) -> bytes:
    """The packed bytes. Steps are float64, because JavaScript has no other whole numbers beyond 32 bits."""
    listed, blobs = [], []
    for name, array in arrays.items():
        kind = array.dtype.name if array.dtype.name in TYPES else "float64"
        plain = np.ascontiguousarray(array, TYPES[kind])
        listed.append([name, kind, list(array.shape)])
        blobs.append(_filled(_differences(plain) if kind == "uint16" else plain.tobytes()))
    header = json.dumps(
        {"facts": plain_json(facts), "arrays": listed}, ensure_ascii=False, separators=(",", ":")
    ).encode("utf-8", "replace")
    header += b" " * (-(len(header) + 4) % 8)
    return len(header).to_bytes(4, "little") + header + b"".join(blobs)


def squeezed(data: bytes) -> bytes:
    """Compresses the bytes in a form that browsers can decompress. The same data gives the same bytes, because there is no time stamp."""
    return gzip.compress(data, 6, mtime=0)


def plain_json(value: Any) -> Any:
    """A value as JSON can hold it. Numbers that are not finite become the words "NaN", "Inf" and "-Inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
    if isinstance(value, Mapping):
        return {str(key): plain_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain_json(value.item())
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def _differences(codes: Array) -> bytes:
    if not codes.size:
        return b""
    rows = codes.reshape(-1, codes.shape[-1])
    steps = rows.copy()
    steps[:, 1:] -= rows[:, :-1]  # below 0 numbers wrap to 65535, here and when unpacked
    steps[1:, 0] -= rows[:-1, 0]
    signed = steps.view("<i2")
    data = ((signed << 1) ^ (signed >> 15)).tobytes()
    return data[1::2] + data[::2]


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
