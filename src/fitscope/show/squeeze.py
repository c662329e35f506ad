"""Many steps in few columns, so that whatever stood out still does.

A column that stands for several steps shows the value farthest from the middle of its row: a spike of one
batch and a dip of one batch both survive, which a mean or the nearest step would hide. NaN, Inf and "not
recorded" are never values: they are marks of their own, and the worst one of a column wins.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.show.data.series import extremes

Array = np.ndarray[Any, Any]

#: The marks, the worse the higher.
MISSING, VALUE, INF, NAN = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Grid:
    """One number for each row (a site) and column (a step, or several)."""

    values: Array  #: (rows, columns) float; counts only where the mark is VALUE
    marks: Array  #: (rows, columns) of the marks above

    @classmethod
    def of(cls, values: Array, nans: Array | None = None, infs: Array | None = None) -> Grid:
        """From values with NaN where nothing was recorded, and the counts of NaN and Inf beside them."""
        values = np.atleast_2d(np.asarray(values, float))
        marks = np.where(np.isnan(values), MISSING, VALUE)
        marks[np.isinf(values)] = INF
        for counts, mark in ((infs, INF), (nans, NAN)):
            if counts is not None:
                marks[np.atleast_2d(np.nan_to_num(np.asarray(counts, float))) > 0] = mark
        return cls(values, marks)

    def row(self, number: int) -> Grid:
        """One row alone."""
        return Grid(self.values[number : number + 1], self.marks[number : number + 1])

    def columns(self, most: int) -> Grid:
        """At most so many columns."""
        return self._squeezed(most) if self.values.shape[1] > most else self

    def rows(self, most: int) -> Grid:
        """At most so many rows; neighbours are taken together in the same way."""
        if self.values.shape[0] <= most:
            return self
        turned = Grid(self.values.T, self.marks.T)._squeezed(most)
        return Grid(turned.values.T, turned.marks.T)

    def _squeezed(self, most: int) -> Grid:
        rows, wide = self.values.shape
        seen = np.where(self.marks == VALUE, self.values, np.nan)
        values, marks = np.empty((rows, most)), np.empty((rows, most), int)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a row without a value has no middle
            middle = np.nanmedian(seen, axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # zero has no logarithm: −inf from −inf is no distance
            far = np.nan_to_num(np.abs(seen - middle), nan=-1.0)
        for column, part in enumerate(shares(wide, most)):
            pick = part.start + far[:, part].argmax(axis=1)
            values[:, column] = seen[np.arange(rows), pick]
            marks[:, column] = self.marks[:, part].max(axis=1)
        return Grid(values, marks)


def log10(grid: Grid) -> Grid:
    """The same on a log scale. Zero has no logarithm: it becomes −inf, below every scale."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return Grid(np.log10(np.abs(grid.values)), grid.marks)


def shares(count: int, columns: int) -> list[slice]:
    """Which of `count` things each column stands for: several, or one that stands in several columns."""
    starts = [column * count // columns for column in range(columns + 1)]
    return [slice(a, max(b, a + 1)) for a, b in itertools.pairwise(starts)]


def squeezed(values: Array, columns: int) -> tuple[Array, Array]:
    """The lowest and the highest value of each column; NaN where there is none."""
    if not len(values):
        return np.empty(0), np.empty(0)
    return extremes(values, np.array([share.start for share in shares(len(values), columns)]))
