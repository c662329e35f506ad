"""What is computed a second time, so that handing it out changes nothing: as little as can be."""

from __future__ import annotations

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("shadows are made in TensorFlow's graphs", allow_module_level=True)

import tensorflow as tf

from fitscope.capture.backends._tensorflow_shadow import handed_out, rows_of, shadow_of

RNG = np.random.default_rng(0)


def ours(graph) -> list[str]:
    """The types of the operations that were added."""
    return sorted(op.type for op in graph.get_operations() if "_fitscope_shadow" in op.node_def.attr)


@pytest.mark.parametrize("batch", [9, None], ids=["known", "unknown"])
@pytest.mark.parametrize("of_one", [(9, 4, 5), (1, 4, 5), (4, 5), (5,), ()], ids=str)
def test_a_shadow_computes_only_the_sampled_rows(batch, of_one):
    """Also where an operand has one row for all, which may show only when the graph runs."""
    x, other = RNG.normal(size=(9, 4, 5)), RNG.normal(size=of_one)
    spec = [None, *of_one[1:]] if batch is None and len(of_one) == 3 else of_one
    widths = []

    @tf.function(input_signature=[tf.TensorSpec([batch, 4, 5], tf.float64), tf.TensorSpec(spec, tf.float64)])
    def both(x, other):
        shadow = shadow_of(tf.nn.relu(x * other - 0.1), {})
        rows = rows_of(shadow, tf.range(0, tf.shape(x)[0], 4))
        widths.append((rows.op.type, rows.shape[1:]))
        return shadow, rows

    shadow, rows = both(x, other)
    assert widths == [("Relu", (4, 5))]  # computed from rows, not taken from the whole
    np.testing.assert_array_equal(rows, shadow[::4])
    np.testing.assert_array_equal(rows, np.maximum(x * other - 0.1, 0)[::4])


def test_recording_a_sum_of_gradients_repeats_no_convolution():
    kernel = tf.constant(RNG.normal(size=(3, 3, 2, 2)), tf.float32)
    graphs = []

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 2])])
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            branches = [tf.nn.conv2d(x, kernel * k, 1, "SAME") for k in (1.0, 2.0)]
            loss = tf.reduce_sum(branches[0] ** 2) + tf.reduce_sum(branches[1] ** 3)
        found = tape.gradient(loss, x)
        next_one = found + 1.0  # the one use
        shadow = handed_out(found, {}, forward=False)
        assert shadow is not found
        graphs.append(tf.compat.v1.get_default_graph())
        return next_one, shadow

    after, shown = gradient(RNG.normal(size=(3, 6, 6, 2)).astype("float32"))
    np.testing.assert_array_equal(after, shown + 1.0)
    assert ours(graphs[0]) == ["AddN"]
