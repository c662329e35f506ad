"""Holds one measure over all rows and steps, and reduces any stretch to a screen's columns by its extremes.

A cell keeps the lowest and the highest value of its batches, ranks and steps, and whether they include a value, an Inf or a NaN. So
a spike, a dip and a single NaN survive every reduction. Columns are powers of two of recorded steps, counted from the first; so a
full column never changes, a growing run
adds columns at the end, and two neighbours merge into one column of the next level.

Numbers are kept as 16-bit codes (`Code`), and the page gets these codes. A matrix of 300 rows × 100,000 steps takes 150 MB, and a
window of it is reduced in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.show.data.measures import Scale

Array = np.ndarray[Any, Any]

#: Flags of a cell: it has a finite value, an infinite value, a NaN. Without a flag: nothing was recorded.
VALUE, INF, NAN = 1, 2, 4
#: In a comparison of runs: this run recorded the cell, and the other did not.
ONLY_HERE = 8

EMPTY_LOW, EMPTY_HIGH = 65535, 0  #: the codes of a cell without a value, so that merging needs no condition
BLOCK = 512  #: columns that are computed at a time, so that they fit into a processor's cache
_FINER = 4  #: columns of one level that make one column of the next
_LEAST = 64  #: columns that need no coarser level


@dataclass(frozen=True, slots=True)
class Code:
    """The encoding of a number as a code from 0 to 65535: number = offset + code × step. Code 0 also stands for smaller numbers."""

    offset: float
    step: float

    @classmethod
    def of(cls, scale: Scale) -> Code:
        if scale.kind in ("share", "cosine"):
            return cls(scale.low, (scale.high - scale.low) / 65535)
        return cls(-128.0, 1 / 64)  # log2 of every float32 that is not subnormal, to 0.6 %

    def encode(self, numbers: Array) -> Array:
        codes = np.subtract(numbers, self.offset, dtype=np.float64)
        codes *= 1 / self.step
        np.fmax(np.rint(codes, out=codes), 0, out=codes)  # NaN becomes 0
        return np.fmin(codes, 65535, out=codes).astype(np.uint16)

    def decode(self, codes: Array) -> Array:
        return self.offset + np.asarray(codes, np.float64) * self.step


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows × columns: codes of the lowest and highest value, and the flags."""

    low: Array
    high: Array
    flags: Array

    @classmethod
    def empty(cls, rows: int, columns: int) -> Cells:
        shape = (rows, columns)
        return cls(
            np.full(shape, EMPTY_LOW, np.uint16),
            np.full(shape, EMPTY_HIGH, np.uint16),
            np.zeros(shape, np.uint8),
        )

    def part(self, first: int, stop: int) -> Cells:
        return Cells(self.low[:, first:stop], self.high[:, first:stop], self.flags[:, first:stop])

    def put(self, first: int, cells: Cells) -> None:
        stop = first + cells.low.shape[1]
        self.low[:, first:stop], self.high[:, first:stop] = cells.low, cells.high
        self.flags[:, first:stop] = cells.flags

    def merge(self, row: Array, column: Array, codes: Array, flags: Array) -> None:
        """Merges numbers into the cells."""
        place = row.astype(np.int64) * self.low.shape[1] + column
        seen = (flags & VALUE) > 0
        if not seen.all():
            np.bitwise_or.at(self.flags.reshape(-1), place, flags)
            place, codes, flags = place[seen], codes[seen], flags[seen]
        low, high, all_flags = (array.reshape(-1) for array in (self.low, self.high, self.flags))
        np.minimum.at(low, place, codes)
        np.maximum.at(high, place, codes)
        np.bitwise_or.at(all_flags, place, flags)

    def merged(self, factor: int) -> Cells:
        """Merges `factor` neighbours into one; the last group may be smaller."""
        if factor == 1:
            return self
        rows, wide = self.low.shape
        if factor >= wide > 0:  # one column for all steps, whatever the factor
            low, high = self.low.min(axis=1, keepdims=True), self.high.max(axis=1, keepdims=True)
            return Cells(low, high, np.bitwise_or.reduce(self.flags, axis=1, keepdims=True))
        if not wide:
            return self
        full = wide // factor * factor
        if full < wide:
            padded = Cells.empty(rows, full + factor)
            padded.put(0, self)
            return padded.merged(factor)
        low, high, flags = self.low[:, ::factor], self.high[:, ::factor], self.flags[:, ::factor]
        for i in range(1, factor):
            low = np.minimum(low, self.low[:, i::factor])
            high = np.maximum(high, self.high[:, i::factor])
            flags = flags | self.flags[:, i::factor]
        return Cells(low, high, flags)


class Matrix:
    """Rows × steps, growing."""

    def __init__(self, rows: int, scale: Scale, code: Code | None = None) -> None:
        self.rows = rows
        self.scale = scale
        self.code = code or Code.of(scale)
        self.count = 0  #: the number of steps
        self.rewritten = 0  #: grows whenever earlier columns than the newest change
        self._steps = np.empty(0, np.int64)
        self._levels: list[Cells] = [Cells.empty(rows, 0)]

    @property
    def steps(self) -> Array:
        return self._steps[: self.count]

    @property
    def nbytes(self) -> int:
        return sum(cells.low.nbytes * 5 // 2 for cells in self._levels)

    def add(self, row: Array, step: Array, number: Array, flags: Array) -> None:
        """Adds numbers (in the scale's domain) with their flags, merging them within a cell."""
        if not len(step):
            return
        steps, column = _columns(step)
        if self.count and steps[0] <= self._steps[self.count - 1]:
            self._mix(row, step, steps, number, flags)
            return
        # The usual case: new steps come after all others.
        cells = Cells.empty(self.rows, len(steps))
        cells.merge(row, column, self.code.encode(number), flags)
        self.put(steps, cells)

    def _mix(self, row: Array, step: Array, steps: Array, number: Array, flags: Array) -> None:
        """Adds late or repeated numbers: from ranks or passes, or for a known step."""
        new = np.setdiff1d(steps, self.steps)
        if len(new) and new[0] < self._steps[self.count - 1]:
            self._insert(new)
        elif len(new):
            self._append(new)
        column = np.searchsorted(self.steps, step)
        self._levels[0].merge(row, column, self.code.encode(number), flags)
        first = int(column.min())
        if first < self.count - len(new):
            self.rewritten += 1
        self._coarser(first)

    def moved(self, places: Array, rows: int) -> Matrix:
        """This matrix with other rows, given the new index of each row (-1: none) and their number."""
        to = Matrix(rows, self.scale, self.code)
        to.count, to._steps, to.rewritten = self.count, self._steps, self.rewritten
        to._levels = [Cells.empty(rows, cells.low.shape[1]) for cells in self._levels]
        kept = np.flatnonzero(places >= 0)
        for new, old in zip(to._levels, self._levels, strict=True):
            for name in ("low", "high", "flags"):
                getattr(new, name)[places[kept]] = getattr(old, name)[kept]
        return to

    def put(self, steps: Array, cells: Cells) -> None:
        """Appends whole columns for steps that come after all others."""
        first = self.count
        self._append(steps)
        self._levels[0].put(first, cells)
        self._coarser(first)

    def cut(self, count: int) -> None:
        """Drops the columns from index `count` on, to be added again; the caller sets `rewritten`."""
        self.count, levels = count, 1
        while count > _LEAST:
            count, levels = -(-count // _FINER), levels + 1
        del self._levels[levels:]

    def cells(self, first: int = 0, stop: int | None = None) -> Cells:
        """Columns of single steps."""
        return self._levels[0].part(first, self.count if stop is None else min(stop, self.count))

    def blocks(self, first: int) -> Iterator[tuple[int, int]]:
        """The columns from `first` on, in blocks that need little memory."""
        for begin in range(first, self.count, BLOCK):
            yield begin, min(begin + BLOCK, self.count)

    def level_for(self, most: int, first: int = 0, stop: int | None = None) -> int:
        """The log2 of the steps per column, so that a stretch needs at most this many columns."""
        stop, level = self.count if stop is None else stop, 0
        while ((stop - 1) >> level) - (first >> level) + 1 > most and stop > first:
            level += 1
        return level

    def window(self, level: int, first: int, stop: int) -> Cells:
        """Columns of 2**level steps, from index `first` to before `stop`."""
        finer, rest = level // 2, level % 2
        while finer >= len(self._levels):
            finer, rest = finer - 1, rest + 2
        factor = 1 << rest
        held = self._levels[finer]
        count = -(-self.count // _FINER**finer)
        return held.part(first * factor, min(stop * factor, count)).merged(factor)

    def columns(self, level: int) -> int:
        """The number of columns of that level; the last may be incomplete."""
        return -(-self.count >> level)

    def starts(self, level: int, first: int = 0, stop: int | None = None) -> Array:
        """The first step of each column."""
        return self.steps[first << level : None if stop is None else stop << level : 1 << level]

    def lasts(self, level: int, first: int = 0, stop: int | None = None) -> Array:
        """The last recorded step of each column: up to the next column, nothing was recorded."""
        columns = np.arange(first, self.columns(level) if stop is None else min(stop, self.columns(level)))
        last: Array = self.steps[np.minimum((columns + 1) << level, self.count) - 1]
        return last

    def reserve(self, count: int) -> None:
        """Reserves space for this many steps."""
        if count > len(self._steps):
            self._steps = np.concatenate([self._steps, np.zeros(count - len(self._steps), np.int64)])
            self._levels[0] = self._grown(self._levels[0], self.count, count)

    def _append(self, steps: Array) -> None:
        count = self.count + len(steps)
        if count > len(self._steps):
            self.reserve(max(int(count * 1.4), 256))
        self._steps[self.count : count] = steps
        self.count = count

    def _grown(self, held: Cells, used: int, room: int) -> Cells:
        grown = Cells(
            *(np.empty((self.rows, room), array.dtype) for array in (held.low, held.high, held.flags))
        )
        grown.put(0, held.part(0, used))
        for array, empty in ((grown.low, EMPTY_LOW), (grown.high, EMPTY_HIGH), (grown.flags, 0)):
            array[:, used:] = empty
        return grown

    def _insert(self, new: Array) -> None:
        """Inserts steps between existing ones, moving everything after them."""
        steps = np.union1d(self.steps, new)
        place = np.searchsorted(steps, self.steps)
        old, self._levels[0] = self.cells(), Cells.empty(self.rows, len(steps))
        for name in ("low", "high", "flags"):
            getattr(self._levels[0], name)[:, place] = getattr(old, name)
        self._steps, self.count = steps, len(steps)
        self.rewritten += 1
        self._coarser(0)

    def _coarser(self, first: int) -> None:
        """Updates the coarser levels from column `first` of the finest on."""
        number, count = 0, self.count
        while count > _LEAST:
            first, count = first // _FINER, -(-count // _FINER)
            if number + 1 == len(self._levels):
                self._levels.append(Cells.empty(self.rows, 0))
                first = 0
            finer, held = self._levels[number], self._levels[number + 1]
            if held.low.shape[1] < count:
                held = self._levels[number + 1] = self._grown(held, first, max(int(count * 1.4), 64))
            used = -(-self.count // _FINER**number)
            held.put(first, finer.part(first * _FINER, used).merged(_FINER))
            number += 1


def _columns(step: Array) -> tuple[Array, Array]:
    """The sorted steps, and the index of each."""
    first, last = int(step.min()), int(step.max())
    # The steps are far apart: sorting is cheaper than a table of all steps between.
    if last - first > 4 * len(step) + 1000:
        steps, place = np.unique(step, return_inverse=True)
        return steps, place
    there = np.zeros(last - first + 1, bool)
    offset = step - first
    there[offset] = True
    return np.flatnonzero(there) + first, (np.cumsum(there) - 1)[offset]
