"""Defines every stat, and how to merge two of them.

All elements are counted. Moments and extremes cover the *finite* elements only, so one NaN does not hide the rest of the tensor;
NaN and Inf are counted separately. Without finite elements, mean, std, min, max and rms are NaN. std is the population std
(divided by n). Sums are in float64. Integers and booleans are converted to the nearest float.

The histogram has fixed power-of-two buckets per sign, the same for every site, step and run. A finite x ≠ 0 with 2^e ≤ |x| <
2^(e+1) and e clamped to −128…127 falls into bucket ±(e + 129); zero (of either sign) falls into bucket 0. So buckets −256…256 are
ordered by value. NaN and Inf are only counted.

`Stats` is a monoid: `empty`, `merge`. `Columns` are the stats of many tensors, one row each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BUCKETS = 513  #: number of histogram buckets
ZERO_BUCKET = 256  #: index of bucket 0 in the histogram array

Histogram = np.ndarray[tuple[int], np.dtype[np.int64]]

#: The stats by name, in the order of the table's columns.
NAMES = ("count", "mean", "std", "min", "max", "rms", "zeros", "negatives", "nans", "infs")


def _no_histogram() -> Histogram:
    return np.zeros(BUCKETS, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Stats:
    """The stats of one tensor, or of several merged ones."""

    count: int = 0
    mean: float = math.nan
    std: float = math.nan
    min: float = math.nan
    max: float = math.nan
    rms: float = math.nan
    zeros: int = 0
    negatives: int = 0  #: finite elements below zero
    nans: int = 0
    infs: int = 0
    hist: Histogram = field(default_factory=_no_histogram)

    @property
    def finite(self) -> int:
        return self.count - self.nans - self.infs

    def merge(self, other: Stats) -> Stats:
        """The stats of both tensors together (Chan's update for the moments)."""
        n, m = self.finite, other.finite
        counts: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("count", "zeros", "negatives", "nans", "infs", "hist")
        }
        if n == 0 or m == 0:
            some = other if n == 0 else self
            return Stats(mean=some.mean, std=some.std, min=some.min, max=some.max, rms=some.rms, **counts)
        p, q = n / (n + m), m / (n + m)
        spread = math.sqrt(p * q)
        delta = other.mean - self.mean
        if math.isfinite(delta):
            mean, between = self.mean + delta * q, delta * spread
        else:  # their distance exceeds the largest float64
            mean, between = self.mean * p + other.mean * q, other.mean * spread - self.mean * spread
        # hypot, because the square of a large float64 overflows (and ** then raises)
        return Stats(
            mean=mean,
            std=math.hypot(self.std * math.sqrt(p), other.std * math.sqrt(q), between),
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            rms=math.hypot(self.rms * math.sqrt(p), other.rms * math.sqrt(q)),
            **counts,
        )


#: The order within `Columns`.
COUNTS = ("count", "zeros", "negatives", "nans", "infs")
MOMENTS = ("mean", "std", "min", "max", "rms")


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The stats of many tensors as arrays with one row each, which is much cheaper than as many `Stats`."""

    counts: np.ndarray[tuple[int, int], np.dtype[np.int64]]  #: a column for each of COUNTS
    moments: np.ndarray[tuple[int, int], np.dtype[np.float64]]  #: a column for each of MOMENTS
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]]  #: the number of non-empty buckets of each histogram
    buckets: np.ndarray[tuple[int], np.dtype[np.int16]]  #: these buckets, −256…256, one row after the other
    tallies: np.ndarray[tuple[int], np.dtype[np.int64]]  #: the number of elements in each of them

    def __len__(self) -> int:
        return len(self.counts)

    def part(self, rows: slice) -> Columns:
        """Some consecutive rows."""
        before, after = int(self.lengths[: rows.start].sum()), int(self.lengths[: rows.stop].sum())
        return Columns(
            self.counts[rows], self.moments[rows], self.lengths[rows], self.buckets[before:after], self.tallies[before:after]
        )  # fmt: skip

    @classmethod
    def of(cls, stats: Sequence[Stats]) -> Columns:
        """The same numbers."""
        counts = np.array([[getattr(s, name) for name in COUNTS] for s in stats], np.int64)
        moments = np.array([[getattr(s, name) for name in MOMENTS] for s in stats], np.float64)
        used = [np.flatnonzero(s.hist) for s in stats]
        return cls(
            counts.reshape(-1, len(COUNTS)),
            moments.reshape(-1, len(MOMENTS)),
            np.array([len(ids) for ids in used], np.int64),
            np.concatenate([[], *used]).astype(np.int16) - np.int16(ZERO_BUCKET),
            np.concatenate([[], *(s.hist[ids] for s, ids in zip(stats, used, strict=True))]).astype(np.int64),
        )

    def rows(self) -> list[Stats]:
        """Each row as a `Stats`."""
        hists = np.zeros((len(self), BUCKETS), np.int64)
        hists[np.repeat(np.arange(len(self)), self.lengths), self.buckets.astype(np.int64) + ZERO_BUCKET] = (
            self.tallies
        )
        rows = zip(self.counts.tolist(), self.moments.tolist(), hists, strict=True)
        make: Any = Stats
        return [make(count, *moments, *counts, hist) for (count, *counts), moments, hist in rows]


def buckets(finite: np.ndarray[Any, Any]) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """The bucket of each finite number, −256…256."""
    _, exponents = np.frexp(np.abs(finite))  # |x| = m · 2^e with ½ ≤ m < 1
    places = np.clip(exponents - 1, -128, 127) + 129
    return np.where(finite == 0, 0, np.where(finite > 0, places, -places)).astype(np.int16)


def edges() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The lower bound of every bucket's magnitude, negative for negative buckets, 0 for bucket 0."""
    powers = np.ldexp(1.0, np.arange(-128, 128))
    return np.concatenate([-powers[::-1], [0.0], powers])
