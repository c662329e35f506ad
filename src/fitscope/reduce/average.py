"""The running mean and variance of each element of a tensor, without keeping any tensor.

The state is in float64: the mean, and the sum of squared distances from it. Each batch is merged with Chan's
update, so a large mean does not hide a small variance. An element that was ever NaN or Inf stays NaN: an average
that skipped some batches would look like one over all of them.

`Average` is a monoid like `Stats` (`empty`, `merge`), but changes in place, because it may be large. Not
thread-safe.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, Any]

CHUNK = 1 << 17  #: elements converted to float64 at once: 1 MB fits into the CPU cache


class Average:
    """The mean and standard deviation of each element over all captured samples."""

    def __init__(
        self, mean: Array | None, m2: Array | None, count: int, captures: int, steps: tuple[int, int] | None
    ) -> None:
        """The object takes over `mean` and `m2` (the sum of squared distances from it). See `empty`."""
        self._mean = mean
        self._m2 = m2
        self._steps = steps
        self.count = count  #: the number of samples, or of tensors if they have no sample axis
        self.captures = captures  #: the number of captured batches

    @classmethod
    def empty(cls) -> Self:
        return cls(None, None, 0, 0, None)

    def __repr__(self) -> str:
        steps = "" if self._steps is None else ", steps {:,} to {:,}".format(*self._steps)
        return f"<Average of {self.count:,} in {self.captures:,} captures{steps}, shape {self.shape}>"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample; None before the first."""
        return None if self._mean is None else self._mean.shape

    @property
    def mean(self) -> Array:
        """The mean of each element; NaN if the element was ever NaN or Inf."""
        if self._mean is None or not self.count:
            return np.full(self.shape or (), np.nan)
        view = self._mean.view()
        view.flags.writeable = False
        return view

    @property
    def var(self) -> Array:
        """The population variance of each element (divided by n)."""
        if self._m2 is None or not self.count:
            return np.full(self.shape or (), np.nan)
        return np.asarray(self._m2 / self.count)

    @property
    def std(self) -> Array:
        """The population standard deviation of each element."""
        var = self.var
        return np.sqrt(var, out=var)

    @property
    def first_step(self) -> int | None:
        return None if self._steps is None else self._steps[0]

    @property
    def last_step(self) -> int | None:
        return None if self._steps is None else self._steps[1]

    def add(self, array: Array, step: int, batched: bool) -> None:
        """Takes one capture: each of its rows is an observation if `batched`, else the array itself."""
        array = np.asarray(array)
        if batched and not array.ndim:
            raise ValueError("an average over samples needs an axis of samples, and this is a scalar")
        rows = array if batched else array[None]
        if np.iscomplexobj(rows):
            raise ValueError(
                "the average of complex numbers is not kept: watch the real and imaginary parts instead"
            )
        mean, m2 = self._prepared(rows.shape[1:])
        flat, mean, m2 = rows.reshape(len(rows), mean.size), mean.reshape(-1), m2.reshape(-1)
        width = max(1, CHUNK // max(1, len(rows)))
        with np.errstate(invalid="ignore", over="ignore"):
            for left in range(0, flat.shape[1], width):
                there = slice(left, left + width)
                seen = self.count
                for top in range(0, len(flat), CHUNK):
                    block = flat[top : top + CHUNK, there].astype(np.float64)
                    middle = block.mean(axis=0)
                    block -= middle
                    np.square(block, out=block)
                    _merge(mean[there], m2[there], seen, middle, block.sum(axis=0), len(block))
                    seen += len(block)
        self._seen(len(rows), 1, (step, step))

    def add_moments(self, mean: Array, m2: Array, count: int, step: int) -> None:
        """Takes one capture by its moments: the mean and the squared distances from it."""
        mean = np.asarray(mean)
        self._take(mean, np.asarray(m2), count)
        self._seen(count, 1, (step, step))

    def merge(self, other: Average) -> Self:
        """Merges the other average into this one. The other one does not change. Returns itself."""
        if other._mean is not None and other._m2 is not None:
            self._take(other._mean, other._m2, other.count)
        if other._steps is not None:
            self._seen(other.count, other.captures, other._steps)
        return self

    def copy(self) -> Average:
        mean, m2 = (None if array is None else array.copy() for array in (self._mean, self._m2))
        return Average(mean, m2, self.count, self.captures, self._steps)

    def _take(self, mean: Array, m2: Array, count: int) -> None:
        mine, mine2 = (array.reshape(-1) for array in self._prepared(mean.shape))
        theirs, theirs2 = np.ravel(mean), np.ravel(m2)
        with np.errstate(invalid="ignore", over="ignore"):
            for left in range(0, len(mine) if count else 0, CHUNK):
                there = slice(left, left + CHUNK)
                block, block2 = (array[there].astype(np.float64) for array in (theirs, theirs2))
                _merge(mine[there], mine2[there], self.count, block, block2, count)

    def _prepared(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The moments to merge into; all zero before the first observation."""
        if self._mean is None or self._m2 is None:
            self._mean, self._m2 = np.zeros(shape), np.zeros(shape)
        elif self._mean.shape != shape:
            raise ValueError(f"the shape of the tensor changed from {self._mean.shape} to {shape}")
        return self._mean, self._m2

    def _seen(self, count: int, captures: int, steps: tuple[int, int]) -> None:
        self.count += count
        self.captures += captures
        first, last = self._steps or (math.inf, -math.inf)
        self._steps = (int(min(first, steps[0])), int(max(last, steps[1])))


def _merge(mean: Array, m2: Array, n: int, other: Array, other_m2: Array, m: int) -> None:
    """Chan's update in place; `other` is used up."""
    if n == 0:
        mean[:], m2[:] = other, other_m2
    else:
        other -= mean
        mean += other * (m / (n + m))
        np.square(other, out=other)
        other *= n / (n + m) * m
        m2 += other
        m2 += other_m2
    broken = ~np.isfinite(mean)
    if broken.any():
        mean[broken] = np.nan
        m2[broken] = np.nan
