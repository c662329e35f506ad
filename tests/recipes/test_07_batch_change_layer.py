"""The change from the previous batch as a layer, and what the two usual ways to write one do instead."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs

pytestmark = pytest.mark.per_backend


class InAnAttribute(layers.Layer):
    """The usual way."""

    def __init__(self):
        super().__init__()
        self.before = None

    def call(self, x):
        change = ops.zeros_like(x) if self.before is None else x - self.before
        self.before = x
        return change

    def compute_output_shape(self, shape):
        return shape


class InAWeight(layers.Layer):
    """The usual way of those who know that a compiled step runs no Python."""

    def build(self, shape):
        self.before = self.add_weight(shape=(8, *shape[1:]), initializer="zeros", trainable=False)
        self.mean_change = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.mean_change.assign(ops.mean(ops.abs(x - self.before)))
        self.before.assign(x)
        return x

    def compute_output_shape(self, shape):
        return shape


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(32, 3)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")


def fit(layer, data, **settings) -> list[float]:
    """The mean change after the first batch of each of two epochs."""
    found = []

    class Reads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                getattr(self.model, "jax_state_sync", lambda: None)()
                found.append(float(layer.mean_change))

    model = keras.Sequential([layers.Input((3,)), layer, layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [Reads(), *settings.pop("callbacks", [])]
    model.fit(*data, batch_size=8, shuffle=False, verbose=0, epochs=2, callbacks=callbacks, **settings)
    return found


def test_a_tensor_kept_in_an_attribute_fails_outside_its_trace(data):
    """JAX and torch say so. TensorFlow traces the step once, finds no batch before, and keeps that answer for good."""
    head = layers.Dense(1)
    model = keras.Sequential([layers.Input((3,)), InAnAttribute(), head])
    model.compile("sgd", "mse")
    before = keras.ops.convert_to_numpy(head.kernel).copy()
    if keras.backend.backend() == "tensorflow":
        model.fit(*data, batch_size=8, verbose=0, epochs=2)
        assert np.array_equal(head.kernel, before)  # it was given zeros in all eight steps
        assert not np.array_equal(head.bias, [0])
        return
    with pytest.raises(Exception, match=r"(?i)tracer|device meta"):
        model.fit(*data, batch_size=8, verbose=0, epochs=2)


def test_a_weight_that_is_assigned_in_every_pass_compares_with_validation_batches(data):
    x, y = data
    validation = (x + 100, y)
    ours, theirs = fs.layers.BatchChange(batch_size=8), InAWeight()
    true_change = np.abs(x[:8] - x[24:]).mean()
    with_validation = [fit(layer, data, validation_data=validation) for layer in (ours, theirs)]
    assert with_validation[0][0] == 0
    assert with_validation[0][1] == pytest.approx(true_change, rel=1e-5)
    assert with_validation[1][0] == pytest.approx(np.abs(x[:8]).mean(), rel=1e-5)  # a change from nothing
    assert with_validation[1][1] == pytest.approx(100, abs=2)  # from the validation data
    assert round(float(true_change), 2) == 0.96  # the page says so


def test_a_weight_of_the_size_of_a_batch_cannot_take_the_last_one(data):
    x, y = data
    with pytest.raises(Exception, match=r"shape|size|broadcast"):
        fit(InAWeight(), (x[:20], y[:20]))
    assert len(fit(fs.layers.BatchChange(batch_size=8), (x[:20], y[:20]))) == 2


def test_with_a_reset_an_epoch_begins_with_no_change(data):
    reset = [fs.layers.ResetBatchChange()]
    assert fit(fs.layers.BatchChange(batch_size=8), data, callbacks=reset) == [0, 0]
