"""Compares arrays bit for bit, for the proof of identity.

Two NaN count as equal, whatever their sign and payload. These have no meaning: x86 returns those of the first operand, and a compiler
may swap the operands of a sum. Without this exception a training that became NaN would be reported as changed by its recording.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of numbers have one dtype, one shape and the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.tobytes() == other.tobytes():
        return True
    if one.dtype.kind == "c":  # the real and imaginary parts, one by one
        one, other = (np.ascontiguousarray(each).view(each.real.dtype) for each in (one, other))
    try:
        nan, also = np.isnan(one), np.isnan(other)
    except TypeError:  # a dtype without NaN
        return False
    return bool((nan == also).all()) and one[~nan].tobytes() == other[~also].tobytes()
