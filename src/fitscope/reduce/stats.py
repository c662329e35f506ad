"""The definition of every stat, and how two of them become one.

All elements are counted; the moments and extremes are those of the *finite* elements, so that one NaN does
not hide what the rest of the tensor does, and the NaN and Inf counts stand beside them. With no finite
element mean, std, min, max and rms are NaN. std is the population's (divided by n). Sums are carried in
float64. Integers and booleans are taken as the nearest float.

The histogram has fixed power-of-two buckets per sign, the same for every site, step and run. A finite x ≠ 0
with 2^e ≤ |x| < 2^(e+1) and e clamped to −128…127 falls into bucket ±(e + 129); zero (of either sign) into
bucket 0. Buckets −256…256 are therefore ordered by value. NaN and Inf are only counted.

`Stats` is a monoid: `empty`, `merge`.
"""

from __future__ import annotations

import math
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
    """The numbers kept about one tensor, or about several merged."""

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
        """The stats of both tensors taken together (Chan's update for the moments)."""
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
        else:  # further apart than the largest float64
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


def edges() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The lower bound of every bucket's magnitude, negative for negative buckets, 0 for bucket 0."""
    powers = np.ldexp(1.0, np.arange(-128, 128))
    return np.concatenate([-powers[::-1], [0.0], powers])
