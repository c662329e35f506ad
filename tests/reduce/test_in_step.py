"""Stats computed by a step on the device are those of the oracle: on the backend that Keras is set to.

Run once per backend, as KERAS_BACKEND=tensorflow, jax and torch.
"""

from __future__ import annotations

import functools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

keras = pytest.importorskip("keras")

from fitscope.errors import WatchError  # noqa: E402
from fitscope.reduce import in_step, oracle  # noqa: E402
from fitscope.reduce.stats import ZERO_BUCKET  # noqa: E402

BACKEND = keras.config.backend()
DTYPES = ["float16", "bfloat16", "float32", "int8", "uint8", "int16", "int32", "int64", "bool"]
if BACKEND != "jax":  # there it is float32, unless one asks for more
    DTYPES.append("float64")


def _eager(function):
    return function


def _compiled(function):
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function)


def _xla(function):
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


def _unknown_shape(function):
    import tensorflow as tf

    def call(x):
        shape = [None] * len(x.shape)
        return tf.function(function, input_signature=[tf.TensorSpec(shape, x.dtype)])(x)

    return call


WAYS = {
    "tensorflow": [_eager, _compiled, _xla, _unknown_shape],
    "jax": [_eager, _compiled],
    "torch": [_eager],
}.get(BACKEND, [])


@functools.cache
def _pack(way):
    return way(lambda x: in_step.pack(x))


def reduce(array, way=_eager):
    packed = _pack(way)(keras.ops.convert_to_tensor(array))
    return in_step.unpack([keras.ops.convert_to_numpy(part) for part in packed])


def want(array):
    """What the oracle says of the array as the device has it."""
    dtype = np.float64 if array.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        return oracle.reduce(array.astype(dtype))


def samples(dtype, size, seed=0):
    rng = np.random.default_rng(seed)
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        x = rng.normal(size=size) * np.exp2(rng.integers(-20, 8, size))
        x[:: max(size // 7, 1)] = 0
        if size > 20:
            x[3:10] = [math.nan, math.inf, -math.inf, -0.0, 1.0, -1.5, -math.nan]
        return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return (
        rng.integers(0, 2, size).astype(bool) if dtype == "bool" else rng.integers(0, 100, size).astype(dtype)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 30, 3_000])
def test_stats_in_the_step_match_the_oracle(dtype, size, way, assert_same):
    array = samples(dtype, size)
    rel = 1e-12 if dtype == "float64" else 1e-5
    assert_same(reduce(array.reshape(-1, 1), way), want(array), rel=rel)


@pytest.mark.parametrize("way", WAYS)
def test_stats_in_the_step_match_those_computed_by_hand(way):
    tiny = [2.0**-126, 2.0**-127, 2.0**-149, -(2.0**-149)]
    large = float(np.finfo(np.float32).max)
    array = np.array([1.0, 1.5, 2.0, -0.75, large, -0.0, 0.0, math.nan, math.inf, *tiny], np.float32)
    stats = reduce(array, way)
    filled = {int(place) - ZERO_BUCKET: int(stats.hist[place]) for place in np.flatnonzero(stats.hist)}
    assert filled == {-128: 1, -1: 1, 0: 2, 1: 1, 2: 1, 3: 1, 129: 2, 130: 1, 256: 1}
    assert (stats.count, stats.zeros, stats.negatives, stats.nans, stats.infs) == (13, 2, 2, 1, 1)
    assert (stats.min, stats.max) == (-0.75, large)

    stats = reduce(np.array([[1, 2], [3, 4]], np.float32), way)
    assert (stats.mean, stats.std, stats.rms) == (
        2.5,
        pytest.approx(math.sqrt(1.25)),
        pytest.approx(math.sqrt(7.5)),
    )


@pytest.mark.skipif("float64" not in DTYPES, reason="no float64 here")
@pytest.mark.parametrize("way", WAYS)
def test_float64_buckets_match_those_computed_by_hand(way):
    last = math.nextafter(2.0, 0.0)  # rounds to 2 in float32
    stats = reduce(np.array([last, -last, 1e300, -1e300, 1e-300, 5e-324, 2.0**-127, -0.0]), way)
    filled = {int(place) - ZERO_BUCKET: int(stats.hist[place]) for place in np.flatnonzero(stats.hist)}
    assert filled == {-256: 1, -129: 1, 0: 1, 1: 2, 2: 1, 129: 1, 256: 1}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_an_empty_tensor_has_a_count_of_zero(shape, way, assert_same):
    array = np.zeros(shape, np.float32)
    assert_same(reduce(array, way), oracle.reduce(array))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_tensor_without_finite_values_has_no_moments_in_the_step(value, way, assert_same):
    array = np.full((3, 4), value, np.float32)
    assert_same(reduce(array, way), oracle.reduce(array))


@pytest.mark.parametrize("way", WAYS)
def test_a_scalar_has_stats_in_the_step(way, assert_same):
    array = np.float32(-2.5).reshape(())
    assert_same(reduce(array, way), oracle.reduce(array))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unit", [1e-36, 1e-25, 1.0, 1e25, 1e38, 1e-300, 1e300])
def test_squares_beyond_the_dtype_do_not_overflow(unit, dtype, way):
    if dtype not in DTYPES or (dtype == "float32" and not 1e-40 < unit < 1e40):
        pytest.skip("cannot hold these")
    stats = reduce((np.array([1, 3, 1, 3, math.nan]) * unit).astype(dtype), way)
    assert stats.mean == pytest.approx(2 * unit, rel=1e-6)
    assert stats.std == pytest.approx(unit, rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_large_mean_does_not_spoil_the_std_in_the_step(way):
    array = (1e4 + np.random.default_rng(0).normal(size=200_000)).astype(np.float32)
    stats = reduce(array, way)
    assert stats.mean == pytest.approx(array.mean(dtype=np.float64), rel=1e-6)
    assert stats.std == pytest.approx(array.std(dtype=np.float64), rel=1e-4)


def test_counts_are_exact_beyond_float32():
    """2²⁴ + 1 is the first number that float32 cannot count to."""
    stats = reduce(np.zeros(2**24 + 3, np.int8))
    assert stats.zeros == stats.count == 2**24 + 3


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_bits_have_the_stats_of_the_oracle(seed):
    """Of all bits only what is exact is compared; moments of such numbers are another matter."""
    array = np.random.default_rng(seed).integers(0, 2**32, 500, np.uint32).view(np.float32)
    got, expected = reduce(array, WAYS[len(WAYS) > 1]), want(array)
    np.testing.assert_array_equal(got.hist, expected.hist)
    for name in ("count", "zeros", "negatives", "nans", "infs", "min", "max"):
        assert getattr(got, name) == getattr(expected, name)


def test_complex_numbers_are_refused():
    with pytest.raises(WatchError, match="real numbers"):
        in_step.pack(keras.ops.convert_to_tensor(np.zeros(3, np.complex64)))


def test_stats_in_the_step_do_not_change_gradients():
    """The gradient of x² beside a `pack(x)` is 2x, and nothing comes of the pack."""
    values = np.array([1.0, -2.0, 3.0], np.float32)

    def loss(x):
        moments, _ = in_step.pack(x)
        return keras.ops.sum(x * x) + 100 * keras.ops.sum(moments)

    if BACKEND == "jax":
        import jax

        gradient = jax.grad(loss)(values)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        x = tf.Variable(values)
        with tf.GradientTape() as tape:
            y = loss(x)
        gradient = tape.gradient(y, x)
    else:
        x = keras.ops.convert_to_tensor(values).requires_grad_()
        loss(x).backward()
        gradient = x.grad
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(gradient), 2 * values)
