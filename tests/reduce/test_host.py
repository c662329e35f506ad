"""The kernel says what the definition says: by hand, and against the oracle for whatever comes."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fitscope.errors import WatchError
from fitscope.reduce import host, kernel, oracle
from fitscope.reduce.stats import BUCKETS, ZERO_BUCKET

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
SMALL = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu, ml_dtypes.int4]
DTYPES = [np.dtype(t) for t in [*FLOATS, *INTEGERS, *SMALL, np.bool_, ">f4", ">f8", ">i4", np.longdouble]]

# Around what the kernel does differently: nothing, one block, several, pairs, without the GIL.
SIZES = [0, 1, 2, 1023, 1024, 1025, 8 * 1024, 8 * 1024 + 1, 40_000]


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("specials", [True, False])
@pytest.mark.parametrize("copies", [1, 3, 2_000, 40_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_buckets_and_counts_match_those_computed_by_hand(dtype, copies, specials):
    bucket_of = {
        1.0: 129,
        1.5: 129,
        2.0: 130,
        math.nextafter(2.0, 3.0): 130,
        -0.75: -128,
        -1.0: -129,
        2.0**-126: 3,  # the smallest normal float32
        2.0**-127: 2,  # a subnormal float32 that still has a bucket of its own
        -(2.0**-127): -2,
        2.0**-128: 1,
        2.0**-149: 1,  # the smallest float32 of all
        -(2.0**-149): -1,
        float(np.finfo(np.float32).max): 256,
        -float(np.finfo(np.float32).max): -256,
    }
    values = [*bucket_of, 0.0, -0.0]
    if specials:
        values += [math.nan, -math.nan, math.inf, -math.inf, -math.inf]
    stats = host.reduce(np.array(values * copies, dtype))

    hist = np.zeros(BUCKETS, np.int64)
    for bucket in bucket_of.values():
        hist[ZERO_BUCKET + bucket] += copies
    hist[ZERO_BUCKET] = 2 * copies
    np.testing.assert_array_equal(stats.hist, hist)
    assert stats.count == len(values) * copies
    assert (stats.zeros, stats.negatives) == (2 * copies, 5 * copies)
    assert (stats.nans, stats.infs) == (2 * copies * specials, 3 * copies * specials)
    assert stats.min == -np.finfo(np.float32).max
    assert stats.max == np.finfo(np.float32).max


@pytest.mark.parametrize("value", [2.0**128, 1e300, np.finfo(np.float64).max])
def test_values_above_all_buckets_are_in_the_last(value):
    hist = host.reduce(np.array([value, -value])).hist
    assert (hist[0], hist[-1], hist.sum()) == (1, 1, 2)


@pytest.mark.parametrize("value", [2.0**-129, 1e-300, 5e-324])
def test_values_below_all_buckets_are_next_to_zero(value):
    hist = host.reduce(np.array([value, -value, -value])).hist
    assert (hist[ZERO_BUCKET - 1], hist[ZERO_BUCKET], hist[ZERO_BUCKET + 1], hist.sum()) == (2, 0, 1, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("copies", [1, 5_000])
def test_moments_match_those_computed_by_hand(dtype, copies):
    if dtype in (np.dtype(np.bool_), np.dtype(ml_dtypes.float8_e8m0fnu)):
        pytest.skip("cannot hold 3")
    stats = host.reduce(np.array([1, 2, 3, 4] * copies).astype(dtype))
    assert stats.mean == pytest.approx(2.5, rel=1e-14)
    assert stats.std == pytest.approx(math.sqrt(1.25), rel=1e-14)
    assert stats.rms == pytest.approx(math.sqrt(7.5), rel=1e-14)
    assert (stats.min, stats.max, stats.count) == (1.0, 4.0, 4 * copies)
    assert stats.hist[[ZERO_BUCKET + 129, ZERO_BUCKET + 130, ZERO_BUCKET + 131]].tolist() == [
        copies,
        2 * copies,
        copies,
    ]


def test_a_tensor_without_finite_values_has_no_moments():
    for array in (np.zeros((0, 3), np.float32), np.full((2, 2), np.nan), np.array(-np.inf)):
        stats = host.reduce(array)
        assert stats.count == array.size == stats.nans + stats.infs
        assert all(math.isnan(getattr(stats, name)) for name in ("mean", "std", "min", "max", "rms"))
        assert stats.hist.sum() == 0


def test_a_constant_has_a_std_of_zero():
    for value in (0.1, -7.3, 1e-30, 1e30, 0.0):
        stats = host.reduce(np.full(100_001, value, np.float32))
        assert stats.std == 0.0
        assert stats.mean == stats.min == stats.max == np.float32(value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1_000, 300_000])
def test_a_large_mean_does_not_spoil_the_std(dtype, size, assert_same):
    rng = np.random.default_rng(0)
    array = (1e6 + rng.normal(0, 0.5, size)).astype(dtype)
    assert_same(host.reduce(array), oracle.reduce(array))


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e200, 4e307])
def test_squares_beyond_float64_do_not_overflow(unit):
    stats = host.reduce(np.array([1, 3, 1, 3, np.nan] * 1_000) * unit)
    assert stats.mean == pytest.approx(2 * unit)
    assert stats.std == pytest.approx(unit)
    assert stats.rms == pytest.approx(math.sqrt(5) * unit)


def test_negative_zero_is_zero():
    stats = host.reduce(np.array([-0.0, -0.0], np.float32))
    assert (stats.zeros, stats.negatives) == (2, 0)
    assert math.copysign(1.0, stats.min) == math.copysign(1.0, stats.max) == 1.0


# ---------------------------------------------------------------------------------------- whatever comes


def _numbers(draw, dtype, size):
    """Arrays of the kinds that tensors are, and of all kinds of bits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = ["normal", "sparse", "wide", "shifted", "bits", "constant", "spiked"]
    kind = draw(st.sampled_from(kinds))
    if kind == "bits":
        raw = rng.integers(0, 256, size * dtype.itemsize, np.uint8)
        if dtype == np.bool_:
            raw &= 1
        if dtype != np.longdouble:  # most of its bits are no numbers
            return raw.view(dtype)
    x = rng.normal(size=size) * 10.0 ** draw(st.integers(-30, 30))
    if kind == "sparse":
        x = np.maximum(x, 0)
    if kind == "wide":
        x *= np.exp2(rng.integers(-60, 60, size))
    if kind == "shifted":
        x += 1e4 * np.abs(x).max(initial=0)
    if kind == "constant":
        x[:] = draw(st.floats(-100, 100))
    if kind == "spiked" and size:
        x[rng.integers(0, size, 3)] = [np.nan, np.inf, 1e9]
    with np.errstate(all="ignore"):
        return np.trunc(np.nan_to_num(x)).astype(dtype) if dtype.kind in "iub" else x.astype(dtype)


@st.composite
def arrays(draw):
    """Arrays of any type, size, content and place in memory."""
    dtype = draw(st.sampled_from(DTYPES))
    array = _numbers(draw, dtype, draw(st.sampled_from(SIZES) | st.integers(0, 3_000)))
    ways = ["plain", "column", "fortran", "strided", "reversed", "swapped", "odd", "locked"]
    way = draw(st.sampled_from(ways))
    if way == "column":
        array = array[:, None, None]
    if way == "fortran":
        array = np.asfortranarray(array[: array.size // 6 * 6].reshape(-1, 3, 2))
    if way == "strided":
        array = array[::3]
    if way == "reversed":
        array = array[::-1]
    if way == "swapped":
        array = array[: array.size // 30 * 30].reshape(5, -1, 3, 2).transpose(2, 0, 3, 1)
    if way == "odd":  # not on a multiple of its size
        array = np.frombuffer(b"x" + array.tobytes(), dtype, offset=1)
    if way == "locked":
        array.flags.writeable = False
    return array


@settings(max_examples=600, deadline=None)
@given(array=arrays())
def test_any_array_has_the_stats_of_the_oracle(array, assert_same):
    before = array.tobytes()
    with np.errstate(all="ignore"):
        want = oracle.reduce(array)
    with np.errstate(all="raise"):  # a user may have asked NumPy for this; we are to be unmoved
        got = host.reduce(array)
    assert_same(got, want)
    assert array.tobytes() == before


@settings(max_examples=100, deadline=None)
@given(several=st.lists(arrays(), max_size=4))
def test_arrays_reduced_together_have_separate_stats(several, assert_same):
    tally = host.Tally(len(several))
    with np.errstate(all="raise"):
        for array in several:
            tally.add(array)
        found = tally.columns().rows()
    for array, got in zip(several, found, strict=True):
        assert_same(got, host.reduce(array), rel=0)


@settings(max_examples=100, deadline=None)
@given(
    array=arrays(),
    cuts=st.lists(st.integers(0, 45_000), max_size=5),
    before=st.integers(0, 2),
)
def test_arrays_reduced_in_turn_have_separate_stats(array, cuts, before, assert_same):
    flat = array.reshape(-1)
    starts = np.array(sorted([0, *(min(cut, flat.size) for cut in cuts), flat.size]))
    tally = host.Tally(before + len(starts) - 1)
    with np.errstate(all="raise"):
        for _ in range(before):
            tally.add(np.full(3, 1e300))
        tally.add_all(flat, starts)
        found = tally.columns().rows()
    for start, end, got in zip(starts[:-1], starts[1:], found[before:], strict=True):
        assert_same(got, host.reduce(flat[start:end]), rel=0)


@settings(max_examples=300, deadline=None)
@given(
    array=st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=6))
    )
)
def test_any_few_floats_have_the_stats_of_the_oracle(array, assert_same):
    with np.errstate(all="ignore"):
        want = oracle.reduce(array)
    assert_same(host.reduce(array), want)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
@np.errstate(all="ignore")
def test_every_16_bit_float_has_the_stats_of_the_oracle(dtype, assert_same):
    array = np.arange(65_536, dtype=np.uint16).view(dtype)
    for part in (array, array[:1_024], array[0x7C00 - 5 : 0x7C00 + 5], array[0x8000:0x8400]):
        assert_same(host.reduce(part), oracle.reduce(part))


def test_elements_below_the_moving_window_are_counted(assert_same):
    """Each block a hundred octaves above or below the last, so that every way of counting has its turn."""
    rng = np.random.default_rng(1)
    blocks = [rng.normal(size=1_024) * 2.0**e for e in (-120, -20, 80, -20, 0, 100, -140, 100)]
    for dtype in (np.float32, np.float64):
        array = np.concatenate(blocks * 3).astype(dtype)
        assert_same(host.reduce(array), oracle.reduce(array))


# ---------------------------------------------------------------------------------------- manners


@pytest.mark.parametrize(
    "dtype", [np.complex64, np.complex128, object, "U3", "S3", "M8[s]", "m8[s]", "f4,f4"]
)
def test_a_dtype_without_stats_is_refused(dtype):
    with pytest.raises(WatchError, match=r"Expected a tensor of real numbers. Received: dtype .*\. "):
        host.reduce(np.zeros(3, dtype))


def test_threads_do_not_disturb_each_other(assert_same):
    rng = np.random.default_rng(2)
    sizes = [10, 1_000, 10_000, 100_000] * 10
    work = [(rng.normal(size=n) * 2.0 ** (k % 10)).astype(FLOATS[k % 4]) for k, n in enumerate(sizes)]
    want = [host.reduce(array) for array in work]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for one, other in zip(pool.map(host.reduce, work), want, strict=True):
                np.testing.assert_array_equal(one.hist, other.hist)
                assert (one.mean, one.std, one.nans) == (other.mean, other.std, other.nans)


@pytest.mark.parametrize("size", [5_000, 200_000])
def test_an_array_that_changes_meanwhile_does_no_harm(size):
    """Torch updates weights in place. What is counted then means nothing, but nothing outside the counts is written.

    The kernel looks at a block several times. An element that changes in between is counted up to three times, or not at all.
    """
    array = np.zeros(size, np.float32)
    bits = array.view(np.uint32)
    margin = 1_000
    around = np.full(margin + BUCKETS + margin, 7, np.int64)
    hist = around[margin:-margin]
    hist[:] = 0
    totals = np.full(margin + len(kernel.NOTHING) + margin, 7.0)
    with ThreadPoolExecutor(1) as pool:
        for word in (0x0080_0000, 0x7F7F_FFFF, 0xFFFF_FFFF, 0) * 20:
            totals[margin:-margin] = kernel.NOTHING
            future = pool.submit(bits.fill, word)
            flat = array.view()
            flat.setflags(write=False)
            kernel.add_float32_nogil(flat, hist, totals[margin:-margin])
            future.result()
            assert (bits == word).all()
            assert 0 <= hist.sum() <= 3 * size
            hist[:] = 0
            assert host.reduce(array).count == size
    for guard in (around[:margin], around[-margin:], totals[:margin], totals[-margin:]):
        assert (guard == 7).all()


def test_after_warming_up_nothing_is_compiled():
    host.warm_up()
    functions = [f for k in host._KERNELS.values() for f in (k.add, k.add_nogil, k.add_all)]
    functions.append(kernel.take_out)
    before = [len(function.signatures) for function in functions]
    assert before == [1] * len(functions)
    for dtype in DTYPES:
        for size in (0, 1, 50_000):
            array = np.ones(size, np.float32).astype(dtype)
            host.reduce(array)
            host.reduce(array[::-1])
            array.flags.writeable = False
            host.reduce(array)
            tally = host.Tally(2)
            tally.add_all(array, np.array([0, size // 2, size]))
            tally.columns()
    assert [len(function.signatures) for function in functions] == before


def test_the_kernel_owns_no_memory_between_calls():
    totals = kernel.NOTHING.copy()
    host.reduce(np.ones(5))
    np.testing.assert_array_equal(kernel.NOTHING, totals)
    first, second = host.reduce(np.ones(5)), host.reduce(np.ones(5))
    assert not np.shares_memory(first.hist, second.hist)
