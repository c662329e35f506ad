"""Fitting many steps into few columns keeps what stood out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fitscope.show.squeeze import INF, MISSING, NAN, VALUE, Grid, log10, shares, squeezed


def test_a_spike_and_a_dip_of_one_step_survive() -> None:
    values = np.ones(5000)
    values[1234], values[4321] = 50.0, 1e-6
    grid = log10(Grid.of(values)).columns(40)
    assert grid.values.shape == (1, 40)
    assert grid.values.max() == np.log10(50.0)
    assert grid.values.min() == -6


def test_the_worst_mark_wins() -> None:
    values, nans, infs = np.ones(100), np.zeros(100), np.zeros(100)
    nans[10], infs[11], infs[60] = 1, 1, 3
    values[80:90] = np.nan
    assert Grid.of(values, nans, infs).columns(10).marks.tolist() == [
        [VALUE, NAN, VALUE, VALUE, VALUE, VALUE, INF, VALUE, MISSING, VALUE]
    ]


def test_an_empty_row_stays_empty() -> None:
    grid = Grid.of(np.full((3, 50), np.nan)).columns(7)
    assert (grid.marks == MISSING).all()


def test_zero_is_a_value_without_a_logarithm() -> None:
    grid = log10(Grid.of(np.array([0.0, 1.0])))
    assert grid.marks.tolist() == [[VALUE, VALUE]]
    assert grid.values.tolist() == [[-np.inf, 0.0]]


def test_rows_are_taken_together_like_columns() -> None:
    values = np.ones((100, 8))
    values[37, 5] = 9.0
    grid = Grid.of(values).rows(10)
    assert grid.values.shape == (10, 8)
    assert grid.values[3, 5] == 9.0
    assert (grid.values == 9.0).sum() == 1


@given(st.integers(1, 500), st.integers(1, 200))
def test_shares_cover_everything(count: int, columns: int) -> None:
    parts = shares(count, columns)
    assert len(parts) == columns
    assert {i for part in parts for i in range(count)[part]} == set(range(count))
    assert all(len(range(count)[part]) >= 1 for part in parts)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300),
    st.integers(1, 60),
)
def test_extremes_are_those_of_all_finite_values(values: list[float], columns: int) -> None:
    low, high = squeezed(np.array(values), columns)
    finite = [v for v in values if np.isfinite(v)]
    if not finite:
        assert np.isnan(low).all()
        assert np.isnan(high).all()
    else:
        assert np.nanmin(low) == min(finite)
        assert np.nanmax(high) == max(finite)
