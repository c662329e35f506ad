"""Computes the stats slowly and obviously.

The tests compare `host` and `in_step` with it. It takes many times the array's memory and uses none of their tricks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fitscope.reduce.stats import BUCKETS, ZERO_BUCKET, Stats


def reduce(array: np.ndarray[Any, Any]) -> Stats:
    """Computes the stats of all elements of the array."""
    x = array.astype(np.float64).ravel()
    nans = np.isnan(x)
    infs = np.isinf(x)
    finite = x[~nans & ~infs]
    counts: dict[str, Any] = {
        "count": x.size,
        "zeros": int((finite == 0).sum()),
        "negatives": int((finite < 0).sum()),
        "nans": int(nans.sum()),
        "infs": int(infs.sum()),
        "hist": _histogram(finite),
    }
    if finite.size == 0:
        return Stats(**counts)
    wide = finite.astype(np.longdouble)  # more digits and, for squares, a wider range
    return Stats(
        mean=float(wide.mean()),
        std=float(wide.std()),
        min=float(finite.min()),
        max=float(finite.max()),
        rms=float(np.sqrt((wide * wide).mean())),
        **counts,
    )


def _histogram(finite: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    nonzero = finite[finite != 0]
    _, exponents = np.frexp(np.abs(nonzero))  # |x| = m · 2^e with ½ ≤ m < 1
    buckets = np.clip(exponents - 1, -128, 127) + 129
    places = ZERO_BUCKET + np.where(nonzero > 0, buckets, -buckets)
    hist = np.bincount(places, minlength=BUCKETS)
    hist[ZERO_BUCKET] = finite.size - nonzero.size
    return hist
