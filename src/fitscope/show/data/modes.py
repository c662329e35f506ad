"""Computes a matrix relative to a reference: the row's own past, the previous batch, the start, or another run.

A relative number is a difference in the measure's domain; on a log scale that is a log2 ratio. `past` is in standard deviations
of the row's own history. A mode follows its matrix: it computes only new columns, so its cost does not grow with the run. If the
other run grows, it computes the columns that the other run had not reached again.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import numpy as np

from fitscope.show.data.matrix import (
    EMPTY_HIGH,
    EMPTY_LOW,
    INF,
    NAN,
    ONLY_HERE,
    VALUE,
    Array,
    Cells,
    Code,
    Matrix,
)
from fitscope.show.data.measures import Scale

#: Key → title, in the order of the menu.
MODES = {
    "absolute": "absolute",
    "past": "vs own past",
    "change": "change since the batch before",
    "start": "vs start",
    "run": "vs another run",
}

_RELATIVE = Code(-128.0, 1 / 64)
_MEMORY = 30  #: roughly how many recorded steps the past reaches back
#: The least deviation, in doublings: a row that never moved must not stand out at its first small change.
_STEADY = 0.15

SPANS = {"past": 6.0, "change": 3.0, "start": 6.0, "run": 4.0}  #: the ends of the colours, either side of 0


#: Numbers for `rewritten` of a relative matrix: each change gets a new one, even if matrices were dropped in between.
_serial = itertools.count(1)


class Against(NamedTuple):
    """Another run: its matrix, and its row for each row of this run, -1 for none."""

    matrix: Matrix
    match: Array


class NewColumns(NamedTuple):
    """New columns: the numbers of each row (NaN: none) and the steps."""

    low: Array
    high: Array
    steps: Array


class Mode:
    """A matrix relative to a reference."""

    def __init__(self, key: str, of: Matrix) -> None:
        self.key = key
        self.of = of
        self._begin(None)

    def _begin(self, against: Against | None) -> None:
        wide = self.of.scale.high - self.of.scale.low
        self._steady = _STEADY if self.of.scale.kind == "log2" else wide / 50
        span = SPANS[self.key] * (1.0 if self.of.scale.kind == "log2" or self.key == "past" else wide / 6)
        self.matrix = Matrix(self.of.rows, Scale(self.key, -span, span), _RELATIVE)
        self.matrix.rewritten = next(_serial)
        self._rewritten = self.of.rewritten
        self._seen = 0
        other = against.matrix if against is not None else None
        # A weak reference, because another object owns the run.
        self._other = weakref.ref(other) if other is not None else None
        self._other_rewritten = other.rewritten if other is not None else 0
        self._reached = -1  # the last step of the other run at the newest comparison
        self._last = np.full(self.of.rows, np.nan)  # the newest value of each row
        self._first = np.full(self.of.rows, np.nan)
        self._mean = np.full(self.of.rows, np.nan)
        self._variance = np.zeros(self.of.rows)

    def follow(self, against: Against | None = None) -> Matrix:
        """The updated relative matrix; `against` is for the mode `run`."""
        if self._rewritten != self.of.rewritten or self._is_another(against):
            self._begin(against)
        elif against is not None:
            self._go_back(against.matrix)
        if not self._seen:
            self.matrix.reserve(self.of.count)
        for first, stop in self.of.blocks(self._seen):
            source = self.of.cells(first, stop)
            low = self._numbers(source.low, source.flags)
            # With one batch per step, the usual case, there is one number to relate, not two.
            several = ((source.low != source.high) & (source.flags & VALUE > 0)).any()
            high = self._numbers(source.high, source.flags) if several else low
            new = NewColumns(low, high, self.of.steps[first:stop])
            self.matrix.put(new.steps, self._coded(new, source.flags, *self._base(new, against)))
            self._seen = stop
        if against is not None and against.matrix.count:
            self._reached = int(against.matrix.steps[-1])
        return self.matrix

    def _is_another(self, against: Against | None) -> bool:
        """Whether the reference has changed."""
        if against is None or self._other is None:
            return (against is None) != (self._other is None)
        return self._other() is not against.matrix or self._other_rewritten != against.matrix.rewritten

    def _go_back(self, other: Matrix) -> None:
        """Drops the columns that the other run had not reached, if it has grown."""
        if other.count and other.steps[-1] > self._reached:
            first = int(np.searchsorted(self.matrix.steps, self._reached, side="right"))
            if first < self._seen:
                self.matrix.cut(first)
                self.matrix.rewritten = next(_serial)
                self._seen = first

    def _numbers(self, codes: Array, flags: Array) -> Array:
        return np.where(flags & VALUE, self.of.code.decode(codes), np.nan)

    def _coded(self, new: NewColumns, flags: Array, base: Array, unit: Any) -> Cells:
        low = (new.low - base) / unit
        known = ~np.isnan(low)
        code = self.matrix.code
        codes = code.encode(low)
        above = codes if new.high is new.low else code.encode((new.high - base) / unit)
        # NaN and Inf keep their flag. A value without a reference counts as missing, with a separate flag.
        alone = flags & np.uint8(INF | NAN)
        if self.key == "run":
            alone = np.where(flags & VALUE, alone | np.uint8(ONLY_HERE), alone)
        return Cells(
            np.where(known, codes, np.uint16(EMPTY_LOW)),
            np.where(known, above, np.uint16(EMPTY_HIGH)),
            np.where(known, flags, alone),
        )

    def _base(self, new: NewColumns, against: Against | None) -> tuple[Array, Any]:
        """The reference values, and the unit."""
        if self.key == "run":
            return self._run(new, against)
        return {"past": self._past, "change": self._change, "start": self._start}[self.key](new)

    def _start(self, new: NewColumns) -> tuple[Array, Any]:
        for column in range(new.low.shape[1]):
            missing = np.isnan(self._first)
            if not missing.any():
                break
            self._first[missing] = new.low[missing, column]
        return self._first[:, None], 1.0

    def _change(self, new: NewColumns) -> tuple[Array, Any]:
        before = np.concatenate([self._last[:, None], new.low], axis=1)
        # If a step was not recorded, use the newest recorded one: its index, carried on from the left.
        place = np.where(np.isnan(before), 0, np.arange(before.shape[1]))
        newest = np.take_along_axis(before, np.maximum.accumulate(place, axis=1), axis=1)
        self._last = newest[:, -1].copy()
        return newest[:, :-1], 1.0

    def _past(self, new: NewColumns) -> tuple[Array, Array]:
        # Step by step, each next to the previous one.
        now = np.ascontiguousarray(((new.low + new.high) / 2).T)
        base, unit = np.empty_like(now), np.empty_like(now)
        mean, variance = self._mean, self._variance
        for i, value in enumerate(now):
            share = 1 / min(self._seen + i + 1, _MEMORY)  # at the start, the mean of all steps so far
            base[i] = mean
            usual = np.add(np.sqrt(variance), self._steady, out=unit[i])
            fresh = np.isnan(mean)
            if fresh.any():
                mean[fresh] = value[fresh]
            # Bounds the effect of one odd batch on the usual value.
            apart = np.minimum(np.maximum(value - mean, -4 * usual), 4 * usual)
            known = ~(fresh | np.isnan(apart))
            np.add(mean, share * apart, out=mean, where=known)
            np.multiply(variance + share * apart**2, 1 - share, out=variance, where=known)
        return base.T, unit.T

    def _run(self, new: NewColumns, against: Against | None) -> tuple[Array, Any]:
        base = np.full_like(new.low, np.nan)
        if against is None or not against.matrix.count:
            return base, 1.0
        other, match = against
        # The newest recorded step of the other run up to this one; beyond its end there is nothing to compare.
        place = np.searchsorted(other.steps, new.steps, side="right") - 1
        last = other.steps[-1] + (np.diff(other.steps[-2:]).max() if other.count > 1 else 0)
        inside = np.flatnonzero((place >= 0) & (new.steps <= last))
        rows = np.flatnonzero(match >= 0)
        if len(inside) and len(rows):
            theirs = other.cells()
            at = np.ix_(match[rows], place[inside])
            middle = (other.code.decode(theirs.low[at]) + other.code.decode(theirs.high[at])) / 2
            base[np.ix_(rows, inside)] = np.where(theirs.flags[at] & VALUE, middle, np.nan)
        return base, 1.0
