"""Computes the stats inside a compiled training step, for accelerators.

`pack` is traced into the step and turns a tensor on the device into two small ones; `unpack` makes `Stats` of
them on the host. Only 2 kB leave the device, whatever the size of the tensor. On a CPU `host` is many
times cheaper: there the tensor itself leaves the step, without a copy.

It works in `jax.jit`, in `tf.function` (with XLA or not, with unknown shapes or not) and in torch, changes
nothing about the tensor and takes no part in gradients. Counts and buckets are exact up to 2³¹ elements: they
are found from the bits, so a device that flushes subnormal numbers to zero counts them all the same. Moments
and extremes are in float32, or in float64 if the tensor is; in these a flushed number is zero.

Types other than float64 are taken as float32, which is exact for all but large integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fitscope.errors import WatchError
from fitscope.reduce.stats import BUCKETS, ZERO_BUCKET, Stats
from fitscope.reduce.units import STUCK

Tensor = Any

#: Places after the buckets where NaN and Inf are counted.
_NANS, _INFS = BUCKETS, BUCKETS + 1
PLACES = BUCKETS + 2


def pack(x: Tensor) -> tuple[Tensor, Tensor]:
    """The input of `unpack`: mean, std, min and max of the finite elements, and the count in each place."""
    from keras import backend, ops

    x = ops.convert_to_tensor(x)
    return pack_with(ops, _device(), x, backend.standardize_dtype(x.dtype))


def pack_with(ops: Any, device: Device, x: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """`pack` with other operations than `keras.ops`, for graphs that Keras does not know."""
    layout = _layout(dtype)
    x = ops.stop_gradient(x)
    x = ops.cast(ops.reshape(x, (-1,)), layout.dtype)
    if x.shape[0] == 0:  # an empty tensor has no minimum
        return ops.zeros(4, layout.dtype), ops.zeros(PLACES, "int32")
    bits = device.bits(x)
    size = ops.bitwise_and(bits, layout.magnitude)
    places = device.tally(_places(ops, bits, size, layout), PLACES)
    return _moments(ops, x, size < layout.infinity, layout), places


def moments(x: Tensor, *, batched: bool) -> tuple[Tensor, Tensor]:
    """The mean of each element over the samples, and the squared distances from it, for `Average.add_moments`."""
    from keras import backend, ops

    x = ops.stop_gradient(ops.convert_to_tensor(x))
    x = ops.cast(x, _layout(backend.standardize_dtype(x.dtype)).dtype)
    if not batched or len(x.shape) == 0:
        return x, ops.zeros_like(x)
    mean = ops.mean(x, axis=0)
    return mean, ops.sum(ops.square(x - mean), axis=0)


def active(x: Tensor, family: str) -> Tensor:
    """The number of samples and positions at which each unit was active; a unit is a place on the last axis, see `units`."""
    from keras import backend, ops

    low, high = STUCK[family]
    x = ops.stop_gradient(ops.convert_to_tensor(x))
    dtype = backend.standardize_dtype(x.dtype)
    x = ops.cast(x, dtype if dtype == "float64" else "float32")
    x = ops.reshape(x, (-1, x.shape[-1] if len(x.shape) > 1 else 1))
    stuck = x <= ops.convert_to_tensor(low, x.dtype)
    if math.isfinite(high):
        stuck = ops.logical_or(stuck, x >= ops.convert_to_tensor(high, x.dtype))
    return ops.sum(ops.cast(ops.logical_not(stuck), "int32"), axis=0)


def unpack(arrays: Sequence[np.ndarray[Any, Any]]) -> Stats:
    """The stats from the two arrays of `pack`."""
    moments, places = arrays
    mean, std, low, high = (float(number) for number in moments)
    hist = np.asarray(places[:BUCKETS], np.int64)
    nans, infs, finite = int(places[_NANS]), int(places[_INFS]), int(hist.sum())
    if not finite:
        mean = std = low = high = math.nan
    return Stats(
        count=finite + nans + infs,
        mean=mean,
        std=std,
        min=low + 0.0,  # turns −0 into 0
        max=high + 0.0,
        rms=math.hypot(mean, std),
        zeros=int(hist[ZERO_BUCKET]),
        negatives=int(hist[:ZERO_BUCKET].sum()),
        nans=nans,
        infs=infs,
        hist=hist,
    )


def merge(packed: Sequence[Sequence[np.ndarray[Any, Any]]]) -> tuple[np.ndarray[Any, Any], ...]:
    """The two arrays of `pack` for several tensors together."""
    stats = functools.reduce(Stats.merge, map(unpack, packed))
    places = np.sum([places for _, places in packed], axis=0)
    return np.array([stats.mean, stats.std, stats.min, stats.max]), places


def _places(ops: Any, bits: Tensor, size: Tensor, layout: _Layout) -> Tensor:
    """The place in which each element is counted."""
    exponent = ops.cast(ops.right_shift(size, layout.mantissa), "int32")
    bucket = ops.where(size < layout.lowest, 1, ops.minimum(exponent + layout.offset, 256))
    bucket = ops.where(ops.equal(size, 0), 0, bucket)
    place = ops.where(bits < 0, ZERO_BUCKET - bucket, ZERO_BUCKET + bucket)
    place = ops.where(ops.equal(size, layout.infinity), _INFS, place)
    return ops.cast(ops.where(size > layout.infinity, _NANS, place), "int32")


def _moments(ops: Any, x: Tensor, finite: Tensor, layout: _Layout) -> Tensor:
    def number(value: float) -> Tensor:  # a Python float would be float32 on TensorFlow
        return ops.convert_to_tensor(value, layout.dtype)

    count = ops.sum(ops.cast(finite, "int32"))
    count = ops.cast(ops.maximum(count, 1), layout.dtype)
    low = ops.min(ops.where(finite, x, number(math.inf)))
    high = ops.max(ops.where(finite, x, number(-math.inf)))
    x = ops.where(finite, x, number(0))
    # The squares of small gradients vanish in float32, those of large ones overflow. Powers of two change no
    # digit. Dividing by the largest would be simpler, but XLA multiplies by its reciprocal, which may
    # vanish. `where` for a maximum, because ops.maximum makes float32 of float64 on torch (Keras 3.15).
    largest = ops.where(high > -low, high, -low)
    small, large = largest < number(layout.small), largest > number(layout.large)
    x = x * ops.where(small, number(layout.grow), ops.where(large, number(layout.shrink), number(1)))
    # Twice, because the first mean is as rough as a sum of many float32 is.
    mean = ops.sum(x) / count
    deviation = ops.where(finite, x - mean, number(0))
    rest = ops.sum(deviation) / count
    variance = ops.sum(deviation * deviation) / count - rest * rest
    std = ops.sqrt(ops.where(variance > 0, variance, number(0)))
    back = ops.where(small, number(1 / layout.grow), ops.where(large, number(1 / layout.shrink), number(1)))
    return ops.stack([(mean + rest) * back, std * back, low, high])


class _Layout(NamedTuple):
    """The bit layout of a float. In NumPy's types, because a bare 2⁶³ − 1 is too large for some frameworks."""

    dtype: str
    mantissa: np.signedinteger[Any]  #: number of bits
    magnitude: np.signedinteger[Any]  #: all bits but the sign
    infinity: np.signedinteger[Any]
    lowest: np.signedinteger[Any]  #: 2⁻¹²⁷; smaller values go into the lowest bucket
    offset: int  #: the difference between the stored exponent and the bucket
    # Up to 2³¹ squares of numbers between these add up without overflow; other numbers are scaled to lie between.
    small: float
    large: float
    grow: float
    shrink: float


_FLOAT32 = _Layout(
    dtype="float32",
    mantissa=np.int32(23),
    magnitude=np.int32(0x7FFF_FFFF),
    infinity=np.int32(0x7F80_0000),
    lowest=np.int32(0x0040_0000),
    offset=129 - 127,
    small=2.0**-55,
    large=2.0**45,
    grow=2.0**100,
    shrink=2.0**-83,
)
_FLOAT64 = _Layout(
    dtype="float64",
    mantissa=np.int64(52),
    magnitude=np.int64(0x7FFF_FFFF_FFFF_FFFF),
    infinity=np.int64(0x7FF0_0000_0000_0000),
    lowest=np.int64(0x3800_0000_0000_0000),
    offset=129 - 1023,
    small=2.0**-450,
    large=2.0**450,
    grow=2.0**600,
    shrink=2.0**-600,
)


def _layout(dtype: str) -> _Layout:
    if dtype.startswith("complex"):
        raise WatchError("a tensor of real numbers", f"dtype {dtype}", "Watch a real tensor made of it")
    return _FLOAT64 if dtype == "float64" else _FLOAT32


# Functions that keras.ops lacks or computes inexactly: the bits of floats, and counting (on torch in float32). Each framework
# has one function for both.


class Device(NamedTuple):
    """The operations of a framework that `keras.ops` lacks."""

    bits: Callable[[Tensor], Tensor]  #: the bits of floats, as integers of the same size
    #: The number of occurrences of each of the first integers, in int32.
    tally: Callable[[Tensor, int], Tensor]


def _device() -> Device:
    from keras import config

    return {"tensorflow": tensorflow_device, "jax": _jax, "torch": _torch}[config.backend()]()


def tensorflow_device() -> Device:
    """The operations on TensorFlow, in the current graph."""
    import tensorflow as tf

    return Device(
        bits=lambda x: tf.bitcast(x, tf.int64 if x.dtype == tf.float64 else tf.int32),
        # Not tf.math.bincount: XLA cannot compile it (TensorFlow 2.21).
        tally=lambda places, size: tf.math.unsorted_segment_sum(tf.ones_like(places), places, size),
    )


def _jax() -> Device:
    import jax
    import jax.numpy as jnp

    return Device(
        bits=lambda x: jax.lax.bitcast_convert_type(x, jnp.int64 if x.dtype == jnp.float64 else jnp.int32),
        tally=lambda places, size: jnp.bincount(places, length=size).astype(jnp.int32),
    )


def _torch() -> Device:
    import torch

    def tally(places: Tensor, size: int) -> Tensor:
        # Not torch.bincount: it makes the host wait for the device.
        ones = torch.ones((), dtype=torch.int32, device=places.device).expand(places.shape)
        return torch.zeros(size, dtype=torch.int32, device=places.device).index_add_(0, places, ones)

    return Device(
        bits=lambda x: x.view(torch.int64 if x.dtype == torch.float64 else torch.int32), tally=tally
    )
