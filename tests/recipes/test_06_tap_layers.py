"""Tap layers in a model, and what the usual clone with copied weights shows instead."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs

pytestmark = pytest.mark.per_backend


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(16, activation="relu", name="hidden")
    model = keras.Sequential([layers.Input((6,)), hidden, layers.Dense(1, name="head")])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 6)).astype("float32")
    return x, x[:, :1] * x[:, 1:2]


def test_a_clone_is_out_of_date_after_the_first_step(model, data):
    """The usual way: clone, copy the weights, look at the clone while the model trains."""
    x, _ = data
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    clones_hidden = keras.Model(clone.inputs, clone.get_layer("hidden").output)
    tapped = fs.with_taps(model, "hidden")
    model.fit(*data, epochs=5, batch_size=32, verbose=0)
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in model.get_layer("hidden").weights)
    hidden = np.maximum(x @ kernel + bias, 0)
    off = np.abs(clones_hidden.predict(x, verbose=0) - hidden)
    assert off.mean() > 0.1  # the page says so
    assert hidden.mean() < 1  # of values of this size
    seen = keras.Model(tapped.inputs, tapped.get_layer("hidden_tap").output).predict(x, verbose=0)
    np.testing.assert_allclose(seen, hidden, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(tapped.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_tap_records_the_value_of_the_step(model, data, tmp_path):
    tapped = fs.with_taps(model, "hidden")
    tapped.compile(keras.optimizers.Adam(0.01), "mse")
    watch = [fs.taps("hidden_tap", keep="tensor"), fs.weights("hidden", keep="tensor")]
    scope = fs.Scope(tmp_path, watch, every=1)
    x, y = data
    tapped.fit(x, y, batch_size=32, shuffle=False, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path)
    for step in range(8):
        kernel, bias = (run.array(f"weights/hidden/{name}", step) for name in ("kernel", "bias"))
        hidden = np.maximum(x[step * 32 : step * 32 + 32] @ kernel + bias, 0)
        np.testing.assert_allclose(run.array("taps/hidden_tap", step), hidden, rtol=1e-4, atol=1e-5)
