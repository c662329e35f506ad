"""The running average against NumPy, which has all observations at once."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitscope.reduce.average import CHUNK, Average

RNG = np.random.default_rng(3)


def average_of(*batches: np.ndarray[Any, Any]) -> Average:
    average = Average.empty()
    for step, batch in enumerate(batches):
        average.add(batch, step, batched=True)
    return average


def agrees(average: Average, rows: np.ndarray[Any, Any]) -> None:
    exact = rows.astype(np.longdouble)
    np.testing.assert_allclose(average.mean, exact.mean(axis=0), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(average.std, exact.std(axis=0), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(average.var, exact.var(axis=0), rtol=1e-10, atol=1e-13)
    assert average.count == len(rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=8), st.integers(0, 3), st.sampled_from("efd?bL"))
def test_an_average_is_the_mean_and_std_of_all_rows(sizes: list[int], ndim: int, kind: str) -> None:
    shape = (2, 3, 1)[:ndim]
    batches = [(RNG.normal(3, 40, (size, *shape))).astype(kind) for size in sizes]
    average = average_of(*batches)
    rows = np.concatenate(batches).astype(np.float64)
    assert average.shape == shape
    assert average.captures == len(sizes)
    if len(rows):
        agrees(average, rows)
    else:
        assert np.isnan(average.mean).all()
        assert np.isnan(average.std).all()


def test_a_small_variance_survives_a_large_mean() -> None:
    batches = [1e9 + RNG.normal(0, 1e-3, (16, 5)) for _ in range(200)]
    average = average_of(*batches)
    rows = np.concatenate(batches)
    np.testing.assert_allclose(average.std, rows.std(axis=0), rtol=1e-4)  # the naive sums give 0 or NaN
    np.testing.assert_allclose(average.mean, rows.mean(axis=0), rtol=1e-14)


def test_a_tensor_without_samples_is_one_observation() -> None:
    tensors = RNG.normal(size=(6, 4, 3)).astype(np.float32)
    average = Average.empty()
    for step, tensor in enumerate(tensors):
        average.add(tensor, 10 * step, batched=False)
    agrees(average, tensors.astype(np.float64))
    assert (average.captures, average.first_step, average.last_step) == (6, 0, 50)


def test_large_batches_are_averaged_in_pieces() -> None:
    wide = [RNG.normal(size=(3, CHUNK + 17)).astype(np.float32) for _ in range(2)]
    agrees(average_of(*wide), np.concatenate(wide).astype(np.float64))
    tall = RNG.normal(size=(2 * CHUNK + 5, 2)).astype(np.float32)
    agrees(average_of(tall), tall.astype(np.float64))


def test_averaging_makes_no_large_temporaries() -> None:
    batch = np.ones((64, 1 << 16), np.float32)  # 16 MB, and 32 MB as float64
    average = average_of(batch)
    tracemalloc.start()
    average.add(batch, 1, batched=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("when", range(3))
def test_an_element_that_was_ever_not_finite_is_nan(odd: float, when: int) -> None:
    batches = [RNG.normal(size=(4, 3)) for _ in range(3)]
    batches[when][2, 1] = odd
    average = average_of(*batches)
    rows = np.delete(np.concatenate(batches), 1, axis=1)
    for got, wanted in ((average.mean, rows.mean(axis=0)), (average.std, rows.std(axis=0))):
        assert np.isnan(got[1])
        np.testing.assert_allclose(got[[0, 2]], wanted)


def test_large_numbers_do_not_overflow_at_the_first_batch() -> None:
    average = average_of(np.full((1, 2), 1e200))
    assert average.mean.tolist() == [1e200, 1e200]
    assert average.std.tolist() == [0, 0]


def test_an_average_takes_bfloat16_and_moments_from_the_step() -> None:
    batch = RNG.normal(size=(8, 3)).astype(ml_dtypes.bfloat16)
    exact = batch.astype(np.float64)
    average = average_of(batch)
    average.add_moments(exact.mean(axis=0), exact.var(axis=0) * 8, 8, step=5)
    agrees(average, np.concatenate([exact, exact]))
    assert (average.captures, average.last_step) == (2, 5)


def test_merge_averages_both_and_leaves_the_other_unchanged() -> None:
    batches = [RNG.normal(size=(size, 4)) for size in (3, 5, 1, 6)]
    left, right = average_of(*batches[:1]), average_of(*batches[1:])
    before = right.mean.copy()
    merged = left.copy().merge(right)
    agrees(merged, np.concatenate(batches))
    assert (merged.captures, merged.first_step, merged.last_step) == (4, 0, 2)
    np.testing.assert_array_equal(right.mean, before)
    agrees(left, batches[0])
    for side in (Average.empty().merge(left), left.copy().merge(Average.empty())):
        agrees(side, batches[0])


def test_a_tensor_that_cannot_be_averaged_is_an_error() -> None:
    average = average_of(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"changed from \(3,\) to \(4,\)"):
        average.add(np.ones((2, 4)), 1, batched=True)
    with pytest.raises(ValueError, match="complex"):
        Average.empty().add(np.ones(2, complex), 0, batched=True)
    with pytest.raises(ValueError, match="scalar"):
        Average.empty().add(np.array(1.0), 0, batched=True)
    assert (average.count, average.captures) == (2, 1)


def test_an_empty_average_has_no_shape() -> None:
    average = Average.empty()
    assert average.shape is None
    assert average.first_step is None
    assert np.isnan(average.mean)
    assert "0 captures" in repr(average)
