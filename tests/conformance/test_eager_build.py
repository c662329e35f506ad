"""A model that is not built before an eager training: fitscope builds it, and the training does not notice."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest

import fitscope as fs

BACKEND = keras.backend.backend()


class Drawn(keras.layers.Layer):
    """Scales its input by a number of Python's own generator, as AugMix chooses its layers."""

    def call(self, x):
        return x * random.random()


def trained(optimizer, to=None):
    """An eager training of a model with two outputs, whose loss Keras builds in the first step."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    hidden = Drawn()(inputs)
    model = keras.Model(
        inputs, [keras.layers.Dense(2, name="a")(hidden), keras.layers.Dense(2, name="b")(hidden)]
    )
    model.compile(optimizer(0.1), ["mse", "mae"], run_eagerly=True)
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    callbacks = [fs.Scope(to, every=1)] if to is not None else []
    history = model.fit(
        x, [x[:, :2], x[:, 1:]], batch_size=4, epochs=2, verbose=0, callbacks=callbacks
    ).history
    values = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *model.optimizer.variables]]
    return [*map(np.asarray, values), np.asarray(list(history.values())), np.asarray(random.random())]


@pytest.mark.parametrize("name", ["SGD", "ScheduleFreeAdamW"])
def test_an_eager_training_of_an_unbuilt_loss_is_identical(tmp_path, name):
    optimizer = getattr(keras.optimizers, name, None)
    if optimizer is None:
        pytest.skip(f"this Keras has no {name}")
    plain, watched = trained(optimizer), trained(optimizer, tmp_path)
    assert len(plain) == len(watched)
    for one, other in zip(plain, watched, strict=True):
        assert np.array_equal(one, other)
    assert fs.open(tmp_path).errors == []


@pytest.mark.skipif(BACKEND != "tensorflow", reason="NumPy asks TensorFlow's tensors")
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_tensor_in_bfloat16_becomes_an_array(shape):
    import tensorflow as tf

    from fitscope.capture.backends.tensorflow import TensorFlowAdapter

    array = TensorFlowAdapter().to_numpy(tf.fill(shape, tf.constant(1.5, tf.bfloat16)))
    assert array.shape == shape
    assert np.array_equal(array.astype("float32"), np.full(shape, 1.5, "float32"))
