"""Robust properties of a curve for the rules: its usual value, its noise, its level at the start and at the end.

All use medians, not means, and ignore NaN and Inf.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fitscope.diagnose.history import Array, History


def median(values: Array) -> float:
    """The median of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)]
    size = len(finite)
    if not size:
        return float("nan")
    finite.sort()  # sorts a copy; `np.median` takes many times as long for the same number
    if size % 2:
        return float(finite[size // 2])
    with np.errstate(over="ignore"):
        return float((finite[size // 2 - 1] + finite[size // 2]) / 2)


def lowest(values: Array) -> float:
    """The smallest value, ignoring NaN; NaN if there is none. Unlike `np.nanmin` it never warns."""
    return float(np.fmin.reduce(values)) if len(values) else float("nan")


def highest(values: Array) -> float:
    """The largest value, ignoring NaN; NaN if there is none."""
    return float(np.fmax.reduce(values)) if len(values) else float("nan")


def mean(values: Array) -> float:
    """The mean of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)].astype(np.float64)
    return float(finite.mean()) if len(finite) else float("nan")


def variance(values: Array) -> float:
    """The variance of the finite values; NaN if there are none."""
    finite = values[np.isfinite(values)].astype(np.float64)
    return float(finite.var()) if len(finite) else float("nan")


def spread(values: Array) -> float:
    """A robust standard deviation (from the median absolute deviation)."""
    return 1.4826 * median(np.abs(values - median(values)))


def ratio(above: Array, below: Array) -> Array:
    """A quotient; NaN if the divisor is zero."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found: Array = np.where(below > 0, above.astype(np.float64) / below, np.nan)
    return found


def shared(one: History, other: History) -> tuple[History, History]:
    """Both histories at the steps that they share."""
    _, i, j = np.intersect1d(one.steps, other.steps, return_indices=True)
    return one.at(i), other.at(j)


def recent(values: Array, window: int) -> tuple[Array, Array]:
    """The median and the spread of the `window` values before each value. NaN for the first value."""
    past = np.concatenate([np.full(window, np.nan), values])[:-1]
    windows = np.lib.stride_tricks.sliding_window_view(past, window)
    middle = _medians(windows)
    return middle, 1.4826 * _medians(np.abs(windows - middle[:, None]))


def _medians(windows: Array) -> Array:
    """The median of each row without NaN; NaN for a row of only NaN."""
    ordered = np.sort(windows, axis=1)  # NaN come last
    count = (~np.isnan(windows)).sum(axis=1)
    rows = np.arange(len(windows))
    low = ordered[rows, np.maximum(count - 1, 0) // 2]
    high = ordered[rows, np.minimum(count // 2, windows.shape[1] - 1)]
    found: Array = np.where(count > 0, (low + high) / 2, np.nan)
    return found


class Course(NamedTuple):
    """The course of a loss: its levels and its noise."""

    steps: Array
    values: Array  #: the finite values
    start: float  #: the level of the first tenth
    end: float  #: the level of the last tenth
    best: float  #: the lowest level of any tenth
    worst: float  #: the highest level of any tenth
    noise: float  #: the noise from one batch to the next
    levels: Array  #: the level of each tenth


def course(history: History | None, least: int = 10) -> Course | None:
    """The course of a loss; None with fewer than `least` values."""
    if history is None:
        return None
    finite = np.isfinite(history.value)
    steps, values = history.steps[finite], history.value[finite].astype(np.float64)
    if len(values) < least:
        return None
    levels = np.array([np.median(part) for part in np.array_split(values, min(10, len(values) // 2))])
    noise = spread(np.diff(values)) / np.sqrt(2)
    return Course(
        steps,
        values,
        float(levels[0]),
        float(levels[-1]),
        float(levels.min()),
        float(levels.max()),
        noise,
        levels,
    )
