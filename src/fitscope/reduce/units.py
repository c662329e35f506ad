"""Counts the activity of units and the variation of features in one compiled pass.

A unit is a place on the last axis of a tensor: a neuron, a channel, a class. It is *active* at a sample (and position) if its
nonlinearity was not stuck there, see `STUCK`. NaN is not stuck: a broken unit is another finding than a dead one.

A feature is a place on the last axis of an input. Mean and spread are computed over all samples so far with Chan's update. A
running hash of its bits shows which features were equal in every sample.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba infers the types. Only functions that other modules call declare them.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fitscope.reduce.compiled import compiled

Array = np.ndarray[Any, Any]

#: For each family of nonlinearities the values at which a unit is stuck: at or below the first, at or above the second.
STUCK = {
    "relu": (0.0, np.inf),
    "leaky": (0.0, np.inf),  # the unit still learns there, but slowly; if never above zero, it is only linear
    "sigmoid": (0.01, 0.99),
    "tanh": (-0.99, 0.99),
    "softmax": (1e-3, 1 - 1e-3),
}

_LONG = 32_768  # elements from which the kernel runs without the GIL, as in `host`


@compiled()
def _count(values, low, high, counts):
    units = counts.size
    rows = values.size // units
    counts[:] = rows
    if high == np.inf:
        for start in range(0, rows * units, units):
            for unit in range(units):
                counts[unit] -= np.int32(values[start + unit] <= low)
    else:
        for start in range(0, rows * units, units):
            for unit in range(units):
                value = values[start + unit]
                counts[unit] -= np.int32(value <= low) | np.int32(value >= high)


@compiled(nogil=True)
def _count_nogil(values, low, high, counts):
    _count(values, low, high, counts)


@compiled()
def _count_all(flat, starts, ends, which, offsets, lows, highs, counts):
    for i in range(which.size):
        layer = which[i]
        into = counts[offsets[layer] : offsets[layer + 1]]
        _count(flat[starts[i] : ends[i]], lows[layer], highs[layer], into)


def count_active(array: Array, bounds: tuple[float, float], counts: Array) -> int:
    """Writes to `counts` (int32, one for each unit) at how many places each unit was active; returns how many there are."""
    flat = _flat(array)
    of = flat.dtype.type  # the bounds in the dtype of the values: 0.99 as float32 is not 0.99 as float64
    (_count if flat.size < _LONG else _count_nogil)(flat, of(bounds[0]), of(bounds[1]), counts)
    return flat.size // counts.size


class Layers(NamedTuple):
    """The units of several layers, one layer after the other."""

    offsets: Array  #: where the units of each layer begin, and where the last ones end
    lows: Array  #: for each layer the values at which a unit is stuck, see `STUCK`
    highs: Array
    #: both bounds as float32, for float32 tensors: 0.99 as float32 is not 0.99 as float64
    bounds32: tuple[Array, Array]

    @classmethod
    def of(cls, offsets: Array, lows: Array, highs: Array) -> Layers:
        return cls(offsets, lows, highs, (lows.astype(np.float32), highs.astype(np.float32)))


def count_all(vector: Array, starts: Array, ends: Array, which: Array, layers: Layers, counts: Array) -> None:
    """`count_active` for several layers, by number, whose outputs are in one vector."""
    flat = _flat(vector)
    lows, highs = (layers.lows, layers.highs) if flat.dtype == np.float64 else layers.bounds32
    _count_all(flat, starts, ends, which, layers.offsets, lows, highs, counts)


def _flat(array: Array) -> Array:
    """The array as the kernel takes it: float32 or float64, in one piece, in the order of its axes, read-only."""
    if array.dtype != np.float32 and array.dtype != np.float64:
        array = array.astype(np.float32)
    flat = np.ascontiguousarray(array).reshape(-1)
    flat.setflags(write=False)  # numba makes this a part of the type
    return flat


@compiled()
def slide(
    now: Array, samples: Array, places: Array, offsets: Array, ring: Array, ring_samples: Array, ring_places: Array,
    firsts: Array, lengths: Array, totals: Array, held: Array, enough: int, shares: Array,
) -> None:  # fmt: skip
    """Moves the window of each layer on by one batch, and writes the share of places at which each unit was active.

    `now`, `samples` and `places` are of this batch; a layer without samples was not in it. `ring` holds the counts of the batches in
    the window, from `firsts` on, `lengths` of them; `totals` and `held` (samples, places) are their sums.
    """
    most = ring.shape[0]
    for i in range(samples.size):
        if samples[i] == 0:
            continue
        low, high = offsets[i], offsets[i + 1]
        while lengths[i] == most or (
            lengths[i] and held[i, 0] + samples[i] - ring_samples[firsts[i], i] >= enough
        ):
            old = firsts[i]
            for unit in range(low, high):
                totals[unit] -= ring[old, unit]
            held[i, 0] -= ring_samples[old, i]
            held[i, 1] -= ring_places[old, i]
            firsts[i] = (old + 1) % most
            lengths[i] -= 1
        slot = (firsts[i] + lengths[i]) % most
        lengths[i] += 1
        ring_samples[slot, i] = samples[i]
        ring_places[slot, i] = places[i]
        held[i, 0] += samples[i]
        held[i, 1] += places[i]
        for unit in range(low, high):
            ring[slot, unit] = now[unit]
            totals[unit] += now[unit]
            shares[unit] = totals[unit] / held[i, 1]


@compiled()
def slide_steps(
    now: Array, samples: Array, places: Array, offsets: Array, ring: Array, ring_samples: Array, ring_places: Array,
    firsts: Array, lengths: Array, totals: Array, held: Array, enough: int, shares: Array,
) -> None:  # fmt: skip
    """`slide` for several batches of one size, one after the other: `now` and `shares` have a row for each."""
    for k in range(now.shape[0]):
        slide(
            now[k], samples, places, offsets, ring, ring_samples, ring_places, firsts, lengths, totals, held, enough, shares[k]
        )  # fmt: skip


@compiled()
def _add_features(values, bits, counts, means, squares, lows, highs, hashes):
    rows, features = values.shape
    sizes = np.zeros(features, np.int64)
    centres = np.zeros(features)
    spreads = np.zeros(features)
    for row in range(rows):
        for j in range(features):
            word = bits[row, j]
            word ^= word >> np.uint64(32)  # the low half of a widened float32 is empty
            word = (hashes[j] ^ word) * np.uint64(0x9E3779B97F4A7C15)
            hashes[j] = word ^ (word >> np.uint64(29))
            value = values[row, j]
            if np.isfinite(value):
                sizes[j] += 1
                centres[j] += value
                lows[j] = min(lows[j], value)
                highs[j] = max(highs[j], value)
    for j in range(features):
        centres[j] /= max(sizes[j], 1)
    for row in range(rows):
        for j in range(features):
            value = values[row, j]
            if np.isfinite(value):
                spreads[j] += (value - centres[j]) ** 2
    for j in range(features):
        if sizes[j]:
            before = counts[j]
            counts[j] += sizes[j]
            delta = centres[j] - means[j]
            share = sizes[j] / counts[j]
            means[j] += delta * share
            squares[j] += spreads[j] + delta * delta * before * share


@compiled()
def _add_features_of_steps(
    values, bits, counts, means, squares, lows, highs, hashes, stds, sizes, ranges, all_hashes, changed
):
    for k in range(values.shape[0]):
        _add_features(values[k], bits[k], counts, means, squares, lows, highs, hashes)
        for j in range(counts.size):
            changed[k, j] = highs[j] > lows[j]
            stds[k, j] = np.sqrt(squares[j] / max(counts[j], 1)) if changed[k, j] else 0.0
            sizes[k, j] = abs(means[j])
            ranges[k, j] = highs[j] - lows[j] if counts[j] > 0 else 0.0
            all_hashes[k, j] = hashes[j]


class Features:
    """The mean, spread, range and identity of each feature over all samples so far."""

    def __init__(self, features: int) -> None:
        self._counts = np.zeros(features, np.int64)
        self._means, self._squares = np.zeros(features), np.zeros(features)
        self._lows, self._highs = np.full(features, np.inf), np.full(features, -np.inf)
        self._hashes = np.zeros(features, np.uint64)
        self._twins = True  # False once no two features are equal: they will never be again

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, array: Array) -> None:
        """Adds samples, whose last axis counts features."""
        values = np.ascontiguousarray(array.reshape(-1, len(self._counts)), np.float64) + 0.0  # −0 is 0
        _add_features(
            values, values.view(np.uint64), self._counts, self._means, self._squares, self._lows, self._highs, self._hashes
        )  # fmt: skip

    def add_steps(self, arrays: Array) -> tuple[Array, Array, Array, Array]:
        """Adds the samples of several steps, stacked. Returns the `values` after each step."""
        steps, features = len(arrays), len(self._counts)
        values = np.ascontiguousarray(arrays.reshape(steps, -1, features), np.float64) + 0.0
        stds, sizes, ranges = np.empty((3, steps, features))
        hashes, changed = np.empty((steps, features), np.uint64), np.empty((steps, features), np.bool_)
        _add_features_of_steps(
            values, values.view(np.uint64), self._counts, self._means, self._squares, self._lows, self._highs, self._hashes,
            stds, sizes, ranges, hashes, changed,
        )  # fmt: skip
        twins = [self._duplicates(some, changes) for some, changes in zip(hashes, changed, strict=True)]
        return stds, sizes, ranges, np.array(twins, np.float64)

    @property
    def std(self) -> Array:
        """The standard deviation; exactly 0 if a feature never changed, however the mean was rounded."""
        return np.where(self._highs > self._lows, np.sqrt(self._squares / np.maximum(self._counts, 1)), 0.0)

    @property
    def size(self) -> Array:
        """The distance of each feature's mean from zero."""
        return np.abs(self._means)

    @property
    def range(self) -> Array:
        """The largest minus the smallest value; 0 if a feature never changed."""
        return np.where(self._counts > 0, self._highs - self._lows, 0.0)

    def values(self) -> tuple[Array, Array, Array, Array]:
        """Standard deviations, distances of the means from zero, ranges, and the number of duplicates."""
        return self.std, self.size, self.range, np.asarray(self.duplicates, np.float64)

    @property
    def duplicates(self) -> int:
        """The number of changing features that equalled another one in every sample."""
        return self._duplicates(self._hashes, self._highs > self._lows)

    def _duplicates(self, hashes: Array, changes: Array) -> int:
        if not self._twins:
            return 0
        changing = hashes[changes]
        _, times = np.unique(changing, return_counts=True)
        found = int(times[times > 1].sum())
        # Two constants may differ later: only features that change decide for good.
        self._twins = found > 0 or changing.size < hashes.size
        return found


def warm_up() -> None:
    """Compiles the functions of this module, or loads them from disk."""
    one, layers = np.zeros(1, np.int64), Layers.of(np.array([0, 1]), np.zeros(1), np.ones(1))
    counts = np.zeros(1, np.int32)
    for dtype in (np.float32, np.float64):
        flat = _flat(np.zeros(1, dtype))
        _count(flat, dtype(0), dtype(1), counts)
        _count_nogil(flat, dtype(0), dtype(1), counts)
        count_all(flat, one, one + 1, one, layers, counts)
    ring = np.zeros((1, 1), np.int32)
    for slides, shape in ((slide, (1,)), (slide_steps, (1, 1))):
        slides(
            counts.reshape(shape), one, one, layers.offsets, ring, ring.astype(np.int64), ring.astype(np.int64), one, one, one,
            np.zeros((1, 2), np.int64), 1, np.zeros(shape, np.float32),
        )  # fmt: skip
    Features(1).add(np.zeros((1, 1), np.float32))
    Features(1).add_steps(np.zeros((1, 1, 1), np.float32))
