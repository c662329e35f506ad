"""Stats of an array that lies in this machine's memory, in one pass over its bytes.

`reduce` takes any array of real numbers: every float, integer and boolean type of NumPy and ml_dtypes, any
shape, strides, byte order and alignment, read-only or not. It never writes to the array and never copies all
of it: float32, float64, float16 and bfloat16 in one piece go to the compiled kernel as they are, the rest in
cache-sized pieces, converted to the smaller of float32 and float64 that holds their values.

It keeps no state, so several threads may call it at once, and gives up the GIL while it reads a large array.

The kernel is compiled once per machine, which takes ten seconds, and is kept on disk. Call `warm_up` before
the first training step, so that no step waits for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fitscope.errors import WatchError
from fitscope.reduce import kernel
from fitscope.reduce.kernel import Array
from fitscope.reduce.stats import BUCKETS, Stats

_PIECE = 65_536  # elements converted at a time
_LONG = 32_768  # elements from which the kernel runs without the GIL, about 20 µs

# Between these no square of a float64 overflows and no sum of squares vanishes.
_TINY, _HUGE = 2.0**-450, 2.0**450


class _Kernel(NamedTuple):
    add: Callable[[Array, Array, Array], None]
    add_nogil: Callable[[Array, Array, Array], None]
    seen_as: np.dtype[Any]  #: what the kernel takes


_FLOAT32, _FLOAT64, _UINT16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)
_KERNELS: dict[np.dtype[Any], _Kernel] = {
    _FLOAT32: _Kernel(kernel.add_float32, kernel.add_float32_nogil, _FLOAT32),
    _FLOAT64: _Kernel(kernel.add_float64, kernel.add_float64_nogil, _FLOAT64),
    np.dtype(np.float16): _Kernel(kernel.add_float16, kernel.add_float16_nogil, _UINT16),
    np.dtype(ml_dtypes.bfloat16): _Kernel(kernel.add_bfloat16, kernel.add_bfloat16_nogil, _UINT16),
}


def reduce(array: Array) -> Stats:
    """The stats of all elements of the array."""
    hist = np.zeros(BUCKETS, np.int64)
    totals = kernel.NOTHING.copy()
    _add(array, hist, totals)
    finite, mean, squares, low, high, zeros, negatives, nans, infs = totals.tolist()
    if finite:
        std = math.sqrt(squares / finite)
        rms = math.hypot(mean, std)
        largest = max(-low, high)
        if not _TINY < largest < _HUGE and largest:
            mean, std, rms = _moments_scaled(array, largest)
    else:
        mean = std = low = high = rms = math.nan
    # + 0.0 makes −0 a 0.
    return Stats(
        array.size,
        mean,
        std,
        low + 0.0,
        high + 0.0,
        rms,
        int(zeros),
        int(negatives),
        int(nans),
        int(infs),
        hist,
    )


def warm_up() -> None:
    """Compiles the kernel, or loads it from disk, for every type and with and without the GIL."""
    for add, add_nogil, seen_as in _KERNELS.values():
        for function in (add, add_nogil):
            function(_flat(np.zeros(1, seen_as), seen_as), np.zeros(BUCKETS, np.int64), kernel.NOTHING.copy())


def _add(array: Array, hist: Array, totals: Array) -> None:
    """Adds the array to what was counted before."""
    flags = array.flags
    found = _KERNELS.get(array.dtype)
    if found is not None and flags.forc and flags.aligned:
        add = found.add if array.size < _LONG else found.add_nogil
        add(_flat(array, found.seen_as), hist, totals)
        return
    with np.errstate(all="ignore"):  # what the user wants of NumPy's errors is not about us
        for piece in _pieces(array, _exact(array.dtype)):
            _KERNELS[piece.dtype].add(piece, hist, totals)


def _flat(array: Array, seen_as: np.dtype[Any]) -> Array:
    """All elements of an array in one piece, in the order of memory, as the kernel takes them.

    Read-only always: to numba that is part of the type, and each type would be compiled anew.
    """
    flat = array.ravel("K")
    if flat.dtype is not seen_as:
        flat = flat.view(seen_as)
    flat.setflags(write=False)
    return flat


def _pieces(array: Array, dtype: np.dtype[Any]) -> Iterator[Array]:
    """All elements, converted, in contiguous read-only pieces; a copy only where it must be one."""
    return np.nditer(  # type: ignore[no-any-return,call-overload]
        array,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly", "aligned", "contig", "nbo"]],
        op_dtypes=[dtype],
        casting="same_kind",
        order="K",
        buffersize=_PIECE,
    )


def _exact(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The smaller float type that holds all values of a type."""
    if np.can_cast(dtype, _FLOAT32):
        return _FLOAT32
    if np.can_cast(dtype, _FLOAT64, "same_kind"):
        return _FLOAT64
    raise WatchError(
        "a tensor of real numbers",
        f"dtype {dtype}",
        "Watch a real tensor made of it, or leave this site out",
    )


def _moments_scaled(array: Array, largest: float) -> tuple[float, float, float]:
    """Mean, std and rms of values whose squares leave the range of float64."""
    exponent = math.frexp(largest)[1] - 1
    scale = math.ldexp(1.0, exponent)
    hist = np.zeros(BUCKETS, np.int64)
    totals = kernel.NOTHING.copy()
    with np.errstate(all="ignore"):
        for piece in _pieces(array, _FLOAT64):
            kernel.add_float64(_flat(np.ldexp(piece, -exponent), _FLOAT64), hist, totals)
    mean = float(totals[kernel.MEAN])
    std = math.sqrt(totals[kernel.SQUARES] / totals[kernel.FINITE])
    return mean * scale, std * scale, min(math.hypot(mean, std) * scale, largest)
