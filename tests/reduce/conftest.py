"""What it means for two stats to be the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fitscope.reduce.stats import Stats

EXACT = ("count", "zeros", "negatives", "nans", "infs", "min", "max")


def _assert_same(got: Stats, want: Stats, rel: float = 1e-9, extremes: float = 0.0) -> None:
    """Counts and buckets are equal; moments to `rel` of the size of the numbers, extremes to `extremes`."""
    for name in EXACT:
        wanted = getattr(want, name)
        tolerance = extremes * abs(wanted) if name in ("min", "max") else 0.0
        assert getattr(got, name) == pytest.approx(wanted, rel=0, abs=tolerance, nan_ok=True), name
    np.testing.assert_array_equal(got.hist, want.hist)
    # The mean of numbers that cancel is as good as the numbers, and so is a std that is small beside them.
    # Below 1e-308 a float64 has no relative precision left: there, a few of its smallest steps.
    size, step = want.rms if want.rms > 0 else 0.0, 20 * 5e-324 if rel else 0.0
    assert got.mean == pytest.approx(want.mean, rel=rel, abs=rel * size + step, nan_ok=True)
    assert got.std == pytest.approx(want.std, rel=rel, abs=rel * 1e-4 * size + step, nan_ok=True)
    assert got.rms == pytest.approx(want.rms, rel=rel, abs=step, nan_ok=True)
    assert got.hist.dtype == np.int64
    assert all(type(getattr(got, name)) is type(getattr(want, name)) for name in Stats.__slots__)


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    return _assert_same
