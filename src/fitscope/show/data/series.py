"""Holds a growing scalar over the steps (the loss, a metric), and computes its extremes in a given number of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Bins:
    """Columns of 2**level recorded steps each: the lowest and highest finite value (NaN if none), and the number of other values."""

    start: Array
    low: Array
    high: Array
    broken: Array


class GrowingSeries:
    """One scalar. Several batches or ranks of one step count as their mean."""

    def __init__(self) -> None:
        self._steps: Array = np.empty(0, np.int64)
        self._values: Array = np.empty(0)
        self.count = 0
        self.rewritten = 0  #: grows whenever earlier values than the newest change

    @property
    def steps(self) -> Array:
        return self._steps[: self.count]

    @property
    def values(self) -> Array:
        return self._values[: self.count]

    def add(self, steps: Array, values: Array) -> None:
        if not len(steps):
            return
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
        if len(starts) < len(steps):
            sizes = np.diff(np.append(starts, len(steps)))
            steps, values = steps[starts], np.add.reduceat(values, starts) / sizes
        if self.count and steps[0] <= self._steps[self.count - 1]:
            self._mix(steps, values)
            return
        count = self.count + len(steps)
        if count > len(self._steps):
            self._steps, self._values = (np.resize(a, 2 * count) for a in (self._steps, self._values))
        self._steps[self.count : count], self._values[self.count : count] = steps, values
        self.count = count

    def _mix(self, steps: Array, values: Array) -> None:
        """Adds late or repeated values. A repeated step gets the mean of both."""
        all_steps = np.concatenate([self.steps, steps])
        known, place = np.unique(all_steps, return_inverse=True)
        sums = np.bincount(place, np.concatenate([self.values, values]))
        self._steps, self._values = known, sums / np.bincount(place)
        self.count = len(known)
        self.rewritten += 1

    def level_for(self, most: int) -> int:
        level = 0
        while -(-self.count >> level) > most:
            level += 1
        return level

    def bins(self, level: int, first: int = 0) -> Bins:
        """The columns from index `first` on."""
        begin = first << level
        steps, values = self.steps[begin:], self.values[begin:]
        if not len(steps):
            return Bins(*(np.empty(0) for _ in range(4)))
        starts = np.arange(0, len(steps), 1 << level)
        broken = np.add.reduceat((~np.isfinite(values)).astype(np.int64), starts)
        return Bins(steps[starts], *extremes(values, starts), broken)


def extremes(values: Array, starts: Array) -> tuple[Array, Array]:
    """The lowest and highest finite value from each start to the next; NaN if there is none."""
    finite = np.isfinite(values)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    none = low > high
    low[none] = high[none] = np.nan
    return low, high
