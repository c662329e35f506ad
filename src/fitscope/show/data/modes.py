"""The same matrix, related to something else: the row's own past, the batch before, the start, another run.

A relative number is a difference in the measure's own domain: of log2, so doublings, where the scale is
logarithmic. `past` is in units of the row's own usual wobble. A mode follows its matrix: only new columns are
computed, so a mode costs nothing more the longer a run is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fitscope.show.data.matrix import EMPTY_HIGH, EMPTY_LOW, INF, NAN, VALUE, Array, Cells, Code, Matrix
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
_MEMORY = 30  #: recorded steps that the own past reaches back, about
_STEADY = 0.15  #: the least wobble, in doublings: a row that never moved must not scream at its first twitch

SPANS = {"past": 6.0, "change": 3.0, "start": 6.0, "run": 4.0}  #: the ends of the colours, either side of 0


class Stretch(NamedTuple):
    """New columns: the numbers of each row (NaN: none) and the steps."""

    low: Array
    high: Array
    steps: Array


class Mode:
    """A matrix seen relative to something."""

    def __init__(self, key: str, of: Matrix, other: Matrix | None = None, match: Array | None = None) -> None:
        """`other` and `match` (its row for each row of ours, -1 for none) are for the mode `run`."""
        self.key = key
        self.of = of
        self._other = other
        self._match = match
        self._begin()

    def _begin(self) -> None:
        wide = self.of.scale.high - self.of.scale.low
        self._steady = _STEADY if self.of.scale.kind == "log2" else wide / 50
        span = SPANS[self.key] * (1.0 if self.of.scale.kind == "log2" or self.key == "past" else wide / 6)
        self.matrix = Matrix(self.of.rows, Scale(self.key, -span, span), _RELATIVE)
        self._rewritten = self.of.rewritten
        self._seen = 0
        self._last = np.full(self.of.rows, np.nan)  # the newest value of each row
        self._first = np.full(self.of.rows, np.nan)
        self._mean = np.full(self.of.rows, np.nan)
        self._variance = np.zeros(self.of.rows)

    def follow(self) -> Matrix:
        """The relative matrix, up to date."""
        if self._rewritten != self.of.rewritten:
            self._begin()
        for first, stop in self.of.blocks(self._seen):
            source = self.of.cells(first, stop)
            low, high = (self._numbers(codes, source.flags) for codes in (source.low, source.high))
            new = Stretch(low, high, self.of.steps[first:stop])
            against = {"past": self._past, "change": self._change, "start": self._start, "run": self._run}
            self.matrix.put(new.steps, self._coded(new, source.flags, *against[self.key](new)))
            self._seen = stop
        return self.matrix

    def _numbers(self, codes: Array, flags: Array) -> Array:
        return np.where(flags & VALUE, self.of.code.decode(codes), np.nan)

    def _coded(self, new: Stretch, flags: Array, base: Array, unit: Any) -> Cells:
        ends = [(side - base) / unit for side in (new.low, new.high)]
        known = ~np.isnan(ends[0])
        code = self.matrix.code
        # NaN and Inf keep their flag; a value without anything to relate it to is as good as none.
        return Cells(
            np.where(known, code.encode(ends[0]), EMPTY_LOW).astype(np.uint16),
            np.where(known, code.encode(ends[1]), EMPTY_HIGH).astype(np.uint16),
            np.where(known, flags, flags & (INF | NAN)).astype(np.uint8),
        )

    # Each gives what the numbers are compared with, and the unit.

    def _start(self, new: Stretch) -> tuple[Array, Any]:
        for column in range(new.low.shape[1]):
            missing = np.isnan(self._first)
            if not missing.any():
                break
            self._first[missing] = new.low[missing, column]
        return self._first[:, None], 1.0

    def _change(self, new: Stretch) -> tuple[Array, Any]:
        base = np.empty_like(new.low)
        for column in range(new.low.shape[1]):
            base[:, column] = self._last
            self._last = np.where(np.isnan(new.low[:, column]), self._last, new.low[:, column])
        return base, 1.0

    def _past(self, new: Stretch) -> tuple[Array, Array]:
        base, unit = np.empty_like(new.low), np.empty_like(new.low)
        for column in range(new.low.shape[1]):
            share = 1 / min(self._seen + column + 1, _MEMORY)  # at the start, the mean of all there is
            base[:, column] = self._mean
            unit[:, column] = np.sqrt(self._variance) + self._steady
            now = (new.low[:, column] + new.high[:, column]) / 2
            apart = now - self._mean
            known, fresh = ~np.isnan(apart), np.isnan(self._mean) & ~np.isnan(now)
            # One wild batch moves what is called usual only so far.
            apart = np.clip(apart, -4 * unit[:, column], 4 * unit[:, column])
            self._mean = np.where(known, self._mean + share * apart, np.where(fresh, now, self._mean))
            self._variance = np.where(
                known, (1 - share) * (self._variance + share * apart**2), self._variance
            )
        return base, unit

    def _run(self, new: Stretch) -> tuple[Array, Any]:
        base = np.full_like(new.low, np.nan)
        if self._other is None or self._match is None or not self._other.count:
            return base, 1.0
        # The other run's newest recorded step at or before ours; beyond its end there is nothing to compare.
        place = np.searchsorted(self._other.steps, new.steps, side="right") - 1
        last = self._other.steps[-1] + (np.diff(self._other.steps[-2:]).max() if self._other.count > 1 else 0)
        inside = np.flatnonzero((place >= 0) & (new.steps <= last))
        rows = np.flatnonzero(self._match >= 0)
        if len(inside) and len(rows):
            theirs = self._other.cells()
            at = np.ix_(self._match[rows], place[inside])
            middle = (self._other.code.decode(theirs.low[at]) + self._other.code.decode(theirs.high[at])) / 2
            base[np.ix_(rows, inside)] = np.where(theirs.flags[at] & VALUE, middle, np.nan)
        return base, 1.0
