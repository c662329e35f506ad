"""Computes the stats of an array in this machine's memory, in one pass over its bytes.

`reduce` takes any array of real numbers: every float, integer and boolean type of NumPy and ml_dtypes, any
shape, strides, byte order and alignment, read-only or not. It never writes to the array and never copies all
of it: float32, float64, float16 and bfloat16 in one piece go to the compiled kernel as they are, the rest in
cache-sized pieces, converted to the smaller of float32 and float64 that holds their values.

It keeps no state, so several threads may call it at once, and gives up the GIL while it reads a large array.

`Tally` does the same for many arrays, and pays the fixed cost of a small array only once.

The kernel is compiled once per machine, which takes ten seconds, and is kept on disk. Call `warm_up` on the thread that will
reduce, before the first step, so that no step waits for the compiler.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fitscope.errors import WatchError
from fitscope.reduce import kernel
from fitscope.reduce.kernel import Array
from fitscope.reduce.stats import BUCKETS, Columns, Stats

_PIECE = 65_536  # elements converted at a time
_LONG = 32_768  # elements from which the kernel runs without the GIL, about 20 µs

# Between these no square of a float64 overflows and no sum of squares vanishes.
_TINY, _HUGE = 2.0**-450, 2.0**450


class _Kernel(NamedTuple):
    add: Callable[[Array, Array, Array], None]
    add_nogil: Callable[[Array, Array, Array], None]
    #: Adds many arrays that lie one after the other.
    add_all: Callable[[Array, Array, Array, Array, Array, Array, Array], int]
    seen_as: np.dtype[Any]  #: the dtype that the kernel reads


_FLOAT32, _FLOAT64, _UINT16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)
_KERNELS: dict[np.dtype[Any], _Kernel] = {
    _FLOAT32: _Kernel(kernel.add_float32, kernel.add_float32_nogil, kernel.add_all_float32, _FLOAT32),
    _FLOAT64: _Kernel(kernel.add_float64, kernel.add_float64_nogil, kernel.add_all_float64, _FLOAT64),
    np.dtype(np.float16): _Kernel(
        kernel.add_float16, kernel.add_float16_nogil, kernel.add_all_float16, _UINT16
    ),
    np.dtype(ml_dtypes.bfloat16): _Kernel(
        kernel.add_bfloat16, kernel.add_bfloat16_nogil, kernel.add_all_bfloat16, _UINT16
    ),
}


def reduce(array: Array) -> Stats:
    """Computes the stats of all elements of an array."""
    tally = Tally(1)
    tally.add(array)
    return tally.columns().rows()[0]


def check(dtype: np.dtype[Any]) -> None:
    """Raises an error for a dtype without stats."""
    if dtype not in _KERNELS:
        _exact(dtype)


class Tally:
    """The stats of many arrays, one row each, in the order in which they are added."""

    def __init__(self, rows: int) -> None:
        self._totals = np.empty((rows, len(kernel.NOTHING)))
        self._totals[:] = kernel.NOTHING
        self._sizes, self._lengths = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._hist = np.zeros(BUCKETS, np.int64)  # the histogram of one array at a time
        self._buckets, self._tallies = ([piece] for piece in _room(0))
        self._row = 0  # the next row
        self._scratch = _room(0)  # holds the buckets of the arrays that are being added
        self._arrays: list[
            tuple[int, Callable[[int], Array]]
        ] = []  # the first row, and a function that returns the values again

    def add(self, array: Array) -> None:
        """Counts an array in the next row."""
        row = self._next(1, lambda _: array)
        self._sizes[row] = array.size
        _add(array, self._hist, self._totals[row])
        self._take_out(row)

    def add_all(self, flat: Array, starts: Array) -> None:
        """Counts consecutive arrays, `flat[starts[i]:starts[i + 1]]`, in the next rows."""
        many = len(starts) - 1
        first = self._next(many, lambda row: flat[starts[row - first] : starts[row - first + 1]])
        rows = slice(first, first + many)
        sizes = self._sizes[rows] = starts[1:] - starts[:-1]
        found = _KERNELS.get(flat.dtype)
        if found is not None and flat.flags.forc and flat.flags.aligned:
            buckets, tallies = self._room_for(sizes)
            taken = found.add_all(
                _flat(flat, found.seen_as),
                starts,
                self._hist,
                self._totals[rows],
                self._lengths[rows],
                buckets,
                tallies,
            )
            self._keep(buckets[:taken].copy(), tallies[:taken].copy(), taken)
        else:
            for row, (start, end) in enumerate(itertools.pairwise(starts.tolist()), first):
                _add(flat[start:end], self._hist, self._totals[row])
                self._take_out(row)

    def _room_for(self, sizes: Array) -> tuple[Array, Array]:
        """Room for the buckets of arrays of these sizes. It is used again, because most of it stays empty."""
        # One more than elements: if the array changes meanwhile, the kernel may count a zero again as another number.
        # And one beyond the last: the kernel writes there.
        most = int(np.minimum(sizes + 1, BUCKETS).sum()) + 1
        if most > len(self._scratch[0]):
            self._scratch = _room(most)
        return self._scratch

    def _next(self, rows: int, give: Callable[[int], Array]) -> int:
        first, self._row = self._row, self._row + rows
        self._arrays.append((first, give))
        return first

    def _take_out(self, row: int) -> None:
        buckets, tallies = _room(BUCKETS)
        self._lengths[row] = kernel.take_out(self._hist, buckets, tallies, 0)
        self._keep(buckets, tallies, int(self._lengths[row]))

    def _keep(self, buckets: Array, tallies: Array, taken: int) -> None:
        self._buckets.append(buckets[:taken])
        self._tallies.append(tallies[:taken])

    def columns(self) -> Columns:
        """The stats of all rows. No more can be added."""
        finite, mean, squares, low, high, zeros, negatives, nans, infs = self._totals.T
        with np.errstate(all="ignore"):
            std = np.sqrt(squares / finite)
            rms = np.hypot(mean, std)
            # + 0.0 makes −0 a 0.
            moments = np.stack([mean, std, low + 0.0, high + 0.0, rms], axis=1)
            largest = np.maximum(-low, high)
            odd = np.flatnonzero((finite > 0) & (largest != 0) & ~((largest > _TINY) & (largest < _HUGE)))
        moments[finite == 0] = np.nan
        for row in odd.tolist():
            array = next(give for first, give in reversed(self._arrays) if first <= row)(row)
            moments[row, 0], moments[row, 1], moments[row, 4] = _moments_scaled(array, float(largest[row]))
        counts = np.stack([self._sizes, zeros, negatives, nans, infs], axis=1).astype(np.int64)
        buckets, tallies = np.concatenate(self._buckets), np.concatenate(self._tallies)
        return Columns(counts, moments, self._lengths, buckets, tallies)


def _room(most: int) -> tuple[Array, Array]:
    """Room for this many non-empty buckets."""
    return np.empty(most, np.int16), np.empty(most, np.int64)


def warm_up() -> None:
    """Compiles the kernel, or loads it from disk, for every dtype, with and without the GIL."""
    hist, totals = np.zeros(BUCKETS, np.int64), kernel.NOTHING.copy().reshape(1, -1)
    lengths, (buckets, tallies) = np.zeros(1, np.int64), _room(BUCKETS)
    for add, add_nogil, add_all, seen_as in _KERNELS.values():
        one = _flat(np.zeros(1, seen_as), seen_as)
        add(one, hist, totals[0])
        add_nogil(one, hist, totals[0])
        add_all(one, np.array([0, 1]), hist, totals, lengths, buckets, tallies)
    kernel.take_out(hist, buckets, tallies, 0)


def _add(array: Array, hist: Array, totals: Array) -> None:
    """Adds an array to the counts so far."""
    flags = array.flags
    found = _KERNELS.get(array.dtype)
    if found is not None and flags.forc and flags.aligned:
        add = found.add if array.size < _LONG else found.add_nogil
        add(_flat(array, found.seen_as), hist, totals)
        return
    with np.errstate(all="ignore"):  # ignore the user's settings for NumPy's errors
        for piece in _pieces(array, _exact(array.dtype)):
            _KERNELS[piece.dtype].add(piece, hist, totals)


def _flat(array: Array, seen_as: np.dtype[Any]) -> Array:
    """All elements of an array in one piece, in memory order, as the kernel takes them.

    Always read-only: for numba that is part of the type, and each type would be compiled separately.
    """
    flat = array.ravel("K")
    if flat.dtype is not seen_as:
        flat = flat.view(seen_as)
    flat.setflags(write=False)
    return flat


def _pieces(array: Array, dtype: np.dtype[Any]) -> Iterator[Array]:
    """All elements, converted, in contiguous read-only pieces; copied only if necessary."""
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
    """The smaller float dtype that holds all values of a dtype."""
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
    """Mean, std and rms of values whose squares exceed the range of float64."""
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
