"""Computes statistics in a session's graph and returns them in one vector, because each fetch has a fixed cost.

The definition equals `reduce.in_step`; this module writes it into a TF1 graph. Counts are exact in float64, so that one vector holds
everything: for each tensor its shape, its moments and how many elements are in which bucket.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from fitscope.capture.sessions.graph import Tensor
from fitscope.reduce import in_step


class _Ops:
    """The operations of `keras.ops` that the definition needs, as TensorFlow graph operations."""

    bitwise_and = staticmethod(tf.bitwise.bitwise_and)
    right_shift = staticmethod(tf.bitwise.right_shift)
    cast = staticmethod(tf.cast)
    convert_to_tensor = staticmethod(tf.convert_to_tensor)
    equal = staticmethod(tf.equal)  # with TF1 behaviour `==` compares identities
    max = staticmethod(tf.reduce_max)
    maximum = staticmethod(tf.maximum)
    min = staticmethod(tf.reduce_min)
    minimum = staticmethod(tf.minimum)
    reshape = staticmethod(tf.reshape)
    sqrt = staticmethod(tf.sqrt)
    stack = staticmethod(tf.stack)
    stop_gradient = staticmethod(tf.stop_gradient)
    sum = staticmethod(tf.reduce_sum)
    where = staticmethod(tf.where)
    zeros = staticmethod(tf.zeros)


class Pack:
    """The statistics of several tensors in one fetch."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.names = [name for name, tensor in tensors.items() if packable(tensor)]
        self.ranks = {name: int(tensors[name].shape.rank) for name in self.names}
        self.dtypes = {name: np.dtype(tensors[name].dtype.base_dtype.as_numpy_dtype) for name in self.names}
        parts = []
        for name in self.names:
            moments, places = in_step.pack_with(
                _Ops, in_step.tensorflow_device(), tensors[name], self.dtypes[name].name
            )
            shape = tf.shape(tensors[name])
            parts += [tf.cast(part, tf.float64) for part in (shape, moments, places)]
        self.fetch = tf.concat(parts, 0, name="stats") if parts else None

    def read(self, vector: np.ndarray[Any, Any]) -> dict[str, dict[str, Any]]:
        """The result in the form of a step that computes statistics."""
        found = {}
        at = 0
        for name in self.names:
            lengths = (self.ranks[name], 4, in_step.PLACES)
            shape, moments, places = np.split(vector[at : at + sum(lengths)], np.cumsum(lengths)[:-1])
            at += sum(lengths)
            found[name] = {
                "shape": shape.astype(np.int64),
                "like": np.empty(0, self.dtypes[name]),
                "stats": (moments, places.astype(np.int64)),
            }
        return found


def packable(tensor: Tensor) -> bool:
    """Whether the graph can compute statistics of this tensor."""
    dtype = tensor.dtype.base_dtype
    return tensor.shape.rank is not None and (dtype.is_floating or dtype.is_integer or dtype.is_bool)
