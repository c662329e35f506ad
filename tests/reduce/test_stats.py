"""Stats form a monoid: `Stats()` is empty, `merge` is the stats of both, in whatever order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fitscope.reduce import oracle
from fitscope.reduce.stats import BUCKETS, NAMES, ZERO_BUCKET, Stats, edges

parts = hnp.arrays(
    np.float64, st.integers(0, 20), elements=st.floats(-1e3, 1e3) | st.sampled_from([np.nan, np.inf])
)
any_parts = hnp.arrays(np.float64, st.integers(0, 20))


def reduce(array: np.ndarray) -> Stats:
    with np.errstate(all="ignore"):
        return oracle.reduce(array)


@settings(max_examples=200, deadline=None)
@given(one=any_parts, other=any_parts)
@example(one=np.array([9.97920155e291]), other=np.array([-1.79769313e308]))
@example(one=np.array([1.7e308]), other=np.array([-1.7e308, -1.6e308]))
def test_merging_equals_reducing_both_arrays(one, other, assert_same):
    both = np.concatenate([one, other])
    assert_same(reduce(one).merge(reduce(other)), reduce(both), rel=1e-8)


@settings(max_examples=100, deadline=None)
@given(array=any_parts)
def test_merging_with_empty_stats_changes_nothing(array, assert_same):
    stats = reduce(array)
    assert_same(stats.merge(Stats()), stats, rel=0)
    assert_same(Stats().merge(stats), stats, rel=0)


@settings(max_examples=100, deadline=None)
@given(a=parts, b=parts, c=parts)
def test_the_order_of_merging_does_not_matter(a, b, c, assert_same):
    x, y, z = reduce(a), reduce(b), reduce(c)
    assert_same(x.merge(y).merge(z), x.merge(y.merge(z)), rel=1e-8)
    assert_same(x.merge(y), y.merge(x), rel=1e-8)


def test_merged_stats_match_those_computed_by_hand():
    merged = reduce(np.array([1.0, 3.0])).merge(reduce(np.array([5.0, 7.0, np.nan])))
    assert (merged.count, merged.nans, merged.finite) == (5, 1, 4)
    assert (merged.mean, merged.min, merged.max) == (4.0, 1.0, 7.0)
    assert merged.std == pytest.approx(math.sqrt(5.0))
    assert merged.rms == pytest.approx(math.sqrt(21.0))


def test_merged_squares_beyond_float64_do_not_overflow():
    merged = Stats(2, 1e200, 0.0, 1e200, 1e200, 1e200).merge(Stats(2, -1e200, 0.0, -1e200, -1e200, 1e200))
    assert (merged.mean, merged.std) == (0.0, pytest.approx(1e200))


def test_merging_changes_neither_operand():
    one, other = reduce(np.ones(3)), reduce(np.zeros(2))
    one.merge(other)
    assert (one.hist.sum(), other.hist.sum()) == (3, 2)


def test_bucket_edges_match_the_buckets():
    lower = edges()
    assert len(lower) == BUCKETS
    assert (lower[ZERO_BUCKET], lower[ZERO_BUCKET + 1], lower[-1]) == (0.0, 2.0**-128, 2.0**127)
    for bucket in (1, 2, 100, 129, 256):
        for sign in (1, -1):
            place = ZERO_BUCKET + sign * bucket
            assert reduce(lower[place : place + 1]).hist[place] == 1
    assert (np.diff(lower) > 0).all()


def test_every_name_is_a_stat():
    assert [*NAMES, "hist"] == list(Stats.__slots__)
