"""Units and features counted by compiled code are those that NumPy counts, of every float type and in every layout."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fitscope.reduce.units import STUCK, Features, count_active

TYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("family", STUCK)
def test_a_unit_is_active_where_it_is_between_the_bounds(family, dtype):
    rng = np.random.default_rng(0)
    values = rng.normal(0.3, 0.8, (40, 3, 7)).astype(dtype)
    values[:, :, 2] = -1
    values[0, 0, 3] = np.nan
    low, high = STUCK[family]
    wide = values.astype(np.float64 if dtype is np.float64 else np.float32)
    of = wide.dtype.type
    expected = (~((wide <= of(low)) | (wide >= of(high)))).sum(axis=(0, 1))
    for array in (values, values[::2], np.asfortranarray(values), values[:, ::-1]):
        counts = np.empty(7, np.int32)
        places = count_active(array, STUCK[family], counts)
        assert places == array.size // 7
        if array.size == values.size:
            assert counts.tolist() == expected.tolist()
    assert not expected[2]


def test_long_arrays_are_counted_without_the_gil_and_correctly():
    values = np.random.default_rng(0).normal(size=(20_000, 5)).astype(np.float32)
    counts = np.empty(5, np.int32)
    assert count_active(values, STUCK["relu"], counts) == 20_000
    assert counts.tolist() == (values > 0).sum(axis=0).tolist()


def test_features_over_many_batches_are_those_of_all_samples_at_once():
    rng = np.random.default_rng(0)
    values = rng.normal(1e4, 1e-2, (300, 9))
    values[:, 1] = 5.0
    values[:, 2] = values[:, 3]
    features = Features(9)
    for rows in np.split(values, [1, 40, 200]):
        features.add(rows)
    np.testing.assert_allclose(features.std, values.std(axis=0), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(features.size, np.abs(values.mean(axis=0)), rtol=1e-12)
    np.testing.assert_array_equal(features.range, np.ptp(values, axis=0))
    assert features.duplicates == 2


def test_features_that_differ_later_are_no_longer_equal():
    features = Features(3)
    features.add(np.array([[1, 1, 1], [2, 2, 1]], np.float32))
    assert features.duplicates == 2
    features.add(np.array([[1, 0, 3]], np.float32))
    assert features.duplicates == 0
    features.add(np.array([[1, 1, 1]], np.float32))
    assert features.duplicates == 0


def test_constants_are_not_duplicates_and_zero_has_no_sign():
    features = Features(4)
    features.add(np.array([[0.0, -0.0, 7, 7], [1, 1, 7, 7]], np.float32))
    assert features.duplicates == 2
    assert np.count_nonzero(features.range == 0) == 2


def test_a_constant_has_no_spread_however_its_mean_is_rounded():
    features = Features(2)
    for rows in (3, 7, 11, 5):
        features.add(np.full((rows, 2), [0.1, -1e7 / 3]))
    assert features.std.tolist() == [0.0, 0.0]


def test_values_that_are_not_finite_are_left_out():
    features = Features(2)
    features.add(np.array([[1, np.nan], [np.inf, np.nan], [3, np.nan]], np.float32))
    assert features.std.tolist() == [1.0, 0.0]
    assert features.size.tolist() == [2.0, 0.0]
    assert features.range.tolist() == [2.0, 0.0]
