"""Reduces many steps to few columns without losing outliers.

A column that covers several steps shows the value farthest from the middle of its row. So a spike or a dip of one batch survives,
which a mean or the nearest step would hide. NaN, Inf and "not recorded" are not values but marks, and the worst mark of a column
wins.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.show.data.series import extremes

Array = np.ndarray[Any, Any]

#: The marks: a worse mark is a higher number.
MISSING, VALUE, INF, NAN = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Grid:
    """One number for each row (a site) and column (a step, or several)."""

    values: Array  #: (rows, columns) float; valid only if the mark is VALUE
    marks: Array  #: (rows, columns) of the marks above

    @classmethod
    def of(cls, values: Array, nans: Array | None = None, infs: Array | None = None) -> Grid:
        """Creates a grid from values (NaN if nothing was recorded) and the counts of NaN and Inf."""
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
        """Reduces the grid to at most this many columns."""
        return self._squeezed(most) if self.values.shape[1] > most else self

    def rows(self, most: int) -> Grid:
        """Reduces the grid to at most this many rows by merging neighbours in the same way."""
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
        with np.errstate(invalid="ignore"):  # the logarithm of zero is −inf, and −inf minus −inf is NaN
            far = np.nan_to_num(np.abs(seen - middle), nan=-1.0)
        for column, part in enumerate(shares(wide, most)):
            pick = part.start + far[:, part].argmax(axis=1)
            values[:, column] = seen[np.arange(rows), pick]
            marks[:, column] = self.marks[:, part].max(axis=1)
        return Grid(values, marks)


def log10(grid: Grid) -> Grid:
    """The grid on a log scale. Zero becomes −inf, below every scale."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return Grid(np.log10(np.abs(grid.values)), grid.marks)


def shares(count: int, columns: int) -> list[slice]:
    """The items of each column: several items, or one item that fills several columns."""
    starts = [column * count // columns for column in range(columns + 1)]
    return [slice(a, max(b, a + 1)) for a, b in itertools.pairwise(starts)]


def squeezed(values: Array, columns: int) -> tuple[Array, Array]:
    """The lowest and highest value of each column; NaN if there is none."""
    if not len(values):
        return np.empty(0), np.empty(0)
    return extremes(values, np.array([share.start for share in shares(len(values), columns)]))
