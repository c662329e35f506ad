"""Healthy programs of dense layers: the usual optimizers, depths, normalisations, schedules and tasks. None deserves a warning."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, losses, optimizers, regularizers

from diagnosis.case import Training, healthy
from diagnosis.data import binary, blobs, curve, thinned
from diagnosis.models import SPARSE, mlp


@healthy("dense")
def plain_sgd() -> Training:
    model = mlp(8, 3)
    model.compile(optimizers.SGD(0.1), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=200).parts(), epochs=5)


@healthy("dense")
def nesterov_momentum() -> Training:
    model = mlp(6, 1, head=None)
    model.compile(optimizers.SGD(0.01, momentum=0.9, nesterov=True), "mse")
    return Training(model, **curve(seed=201).parts(), epochs=6)


@healthy("dense")
def plain_adam() -> Training:
    model = mlp(8, 4, widths=(48, 24))
    model.compile("adam", SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(640, classes=4, seed=202).parts(), epochs=6)


@healthy("dense")
def adamw_with_decay() -> Training:
    model = mlp(8, 3)
    model.compile(optimizers.AdamW(3e-3, weight_decay=0.01), SPARSE)
    return Training(model, **blobs(seed=203, spread=1.5).parts(), epochs=6)


@healthy("dense")
def rmsprop_regression() -> Training:
    model = mlp(6, 1, head=None, activation="tanh")
    model.compile(optimizers.RMSprop(3e-3), "mae")
    return Training(model, **curve(seed=204).parts(), epochs=6)


@healthy("dense")
def adagrad_classifier() -> Training:
    model = mlp(8, 3)
    model.compile(optimizers.Adagrad(0.05), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=205).parts(), epochs=4)


@healthy("dense")
def naturally_sparse_relu() -> Training:
    """Wide ReLU layers behind a negative bias: 60 to 80 % zeros, yet every unit fires for some row."""
    start = keras.initializers.Constant(-0.6)
    model = mlp(8, 3, widths=(64, 64), bias_initializer=start, kernel_initializer="he_normal")
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=211, spread=1.5).parts(), epochs=5)


@healthy("dense")
def large_targets() -> Training:
    """House prices in thousands, not scaled; the rate is chosen for them."""
    data = curve(seed=212).map_y(lambda y: 80 * y + 250)
    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(0.05), "mae")
    return Training(model, **data.parts(), epochs=8)


@healthy("dense")
def heavy_tailed_loss() -> Training:
    """Targets with rare large values, under a Huber loss: single batches stand out, as they should."""
    data = curve(seed=214)
    rng = np.random.default_rng(1)
    data.y[:] += rng.standard_t(3, size=data.y.shape).astype("float32") * 0.2
    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(3e-3), losses.Huber())
    return Training(model, **data.parts(), epochs=5, batch_size=8)


@healthy("dense")
def plateau_then_progress() -> Training:
    """The exclusive or of signs: flat at first, then it falls."""
    rng = np.random.default_rng(215)
    x = rng.normal(size=(576, 6)).astype("float32")
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).astype("int32")
    model = mlp(6, 2, widths=(32, 16), activation="tanh")
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, x[:480], y[:480], (x[480:], y[480:]), epochs=8)


@healthy("dense")
def regularised_regression() -> Training:
    model = mlp(6, 1, head=None, kernel_regularizer=regularizers.L1L2(1e-4, 1e-4))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **curve(960, seed=222).parts(), epochs=4, validates=True)


@healthy("dense")
def moderate_imbalance() -> Training:
    """One positive in six, and the model finds them."""
    data = thinned(binary(960, seed=223, spread=0.8), 0.2)
    model = mlp(8, 1, head="sigmoid")
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@healthy("dense")
def clipped_at_one() -> Training:
    """Gradients are clipped now and then, as intended."""
    model = mlp(6, 1, head=None)
    model.compile(optimizers.SGD(0.05, momentum=0.8, clipnorm=1.0), "mse")
    return Training(model, **curve(seed=224).parts(), epochs=5)


@healthy("dense")
def several_outputs() -> Training:
    """A class and a number at once."""
    data, inputs = curve(seed=226), layers.Input((6,), name="row")
    x = layers.Dense(32, "relu", name="h1")(inputs)
    x = layers.Dense(32, "relu", name="h2")(x)
    heads = {
        "kind": layers.Dense(2, "softmax", name="kind")(x),
        "amount": layers.Dense(1, name="amount")(x),
    }
    model = keras.Model(inputs, heads)
    model.compile(optimizers.Adam(3e-3), {"kind": SPARSE, "amount": "mse"})

    def both(y):
        return {"kind": (y[:, 0] > 0).astype("int32"), "amount": y}

    return Training(model, data.x, both(data.y), (data.validation[0], both(data.validation[1])), epochs=5)


@healthy("dense")
def one_hot_inputs() -> Training:
    """Categories as ones and zeros: every column is rarely on, and none is constant."""
    rng = np.random.default_rng(229)
    a, b = rng.integers(0, 6, 640), rng.integers(0, 5, 640)
    x = np.concatenate([np.eye(6)[a], np.eye(5)[b]], 1).astype("float32")
    y = ((a * 2 + b) % 3).astype("int32")
    model = mlp(11, 3, widths=(48,))
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, x[:560], y[:560], (x[560:], y[560:]), epochs=6)
