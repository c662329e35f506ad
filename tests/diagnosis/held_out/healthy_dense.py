"""Healthy programs of dense layers: the usual optimizers, depths, normalisations, schedules and tasks. None deserves a warning.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.data import binary, blobs, curve
from diagnosis.models import SPARSE, mlp


@healthy("dense")
def lion_classifier() -> Training:
    model = mlp(8, 3)
    model.compile(optimizers.Lion(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=206).parts(), epochs=6)


@healthy("dense")
def nadam_binary() -> Training:
    model = mlp(8, 1, head="sigmoid")
    model.compile(optimizers.Nadam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **binary(seed=207).parts(), epochs=5)


@healthy("dense")
def ftrl_on_sparse_inputs() -> Training:
    """Bags of words: one input in twenty is not zero."""
    rng = np.random.default_rng(208)
    x = (rng.random((640, 60)) < 0.05).astype("float32")
    y = (x[:, :30].sum(1) > x[:, 30:].sum(1)).astype("float32")[:, None]
    model = keras.Sequential([layers.Input((60,)), layers.Dense(1, "sigmoid", name="head")])
    model.compile(optimizers.Ftrl(0.1), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, x[:560], y[:560], (x[560:], y[560:]), epochs=5)


@healthy("dense")
def deep_selu() -> Training:
    model = mlp(8, 3, widths=(24,) * 10, activation="selu", kernel_initializer="lecun_normal")
    model.compile(optimizers.SGD(0.02), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=209).parts(), epochs=6)


@healthy("dense")
def deep_residual() -> Training:
    """Twelve blocks with identities around them."""
    inputs = layers.Input((6,))
    x = layers.Dense(16, name="stem")(inputs)
    for i in range(12):
        inner = layers.Dense(16, "relu", name=f"in{i}")(layers.LayerNormalization(name=f"norm{i}")(x))
        x = layers.Add(name=f"add{i}")([x, layers.Dense(16, name=f"out{i}")(inner)])
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(1e-3), "mse")
    return Training(model, **curve(seed=210).parts(), epochs=5)


@healthy("dense")
def noisy_loss() -> Training:
    """Batches of four and labels of which a fifth are a coin toss: the loss jumps, and falls."""
    data = blobs(400, classes=2, spread=1.0, seed=213)
    rng = np.random.default_rng(0)
    toss = rng.random(len(data.y)) < 0.2
    data.y[toss] = rng.integers(0, 2, int(toss.sum()))
    model = mlp(8, 2, widths=(16,))
    model.compile(optimizers.SGD(0.02), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=3, batch_size=4)


@healthy("dense")
def learned_to_the_end() -> Training:
    """Easy data: after a few epochs the loss is near zero and its last digits wobble."""
    model = mlp(8, 3, widths=(32,))
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=216, spread=0.3).parts(), epochs=9)


@healthy("dense")
def warmup_and_cosine() -> Training:
    rate = schedules.CosineDecay(0.0, decay_steps=130, warmup_target=5e-3, warmup_steps=30)
    model = mlp(8, 3)
    model.compile(optimizers.Adam(rate), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=217, spread=1.5).parts(), epochs=5)


@healthy("dense")
def steps_of_the_rate() -> Training:
    rate = schedules.PiecewiseConstantDecay([60, 120], [0.05, 0.01, 0.002])
    model = mlp(6, 1, head=None)
    model.compile(optimizers.SGD(rate, momentum=0.9), "mse")
    return Training(model, **curve(seed=218).parts(), epochs=6)


@healthy("dense")
def fine_tuning_at_a_tiny_rate() -> Training:
    """A model that has been trained goes on at a hundredth of the rate."""
    data = blobs(seed=219)
    model = mlp(8, 3)
    model.compile(optimizers.Adam(5e-3), SPARSE)
    model.fit(data.x, data.y, batch_size=32, epochs=3, verbose=0)
    model.compile(optimizers.Adam(2e-5), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=4)


@healthy("dense")
def batchnorm_dense() -> Training:
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(32, use_bias=False, name="h1"),
            layers.BatchNormalization(momentum=0.9, name="bn1"),
            layers.ReLU(name="relu1"),
            layers.Dense(32, use_bias=False, name="h2"),
            layers.BatchNormalization(momentum=0.9, name="bn2"),
            layers.ReLU(name="relu2"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=220).parts(), epochs=6, batch_size=32, validates=True)


@healthy("dense")
def dropout_of_one_half() -> Training:
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(64, "relu", name="h1"),
            layers.Dropout(0.5, name="dropout1"),
            layers.Dense(64, "relu", name="h2"),
            layers.Dropout(0.5, name="dropout2"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(640, seed=221).parts(), epochs=5, validates=True)


@healthy("dense")
def shallow_sigmoids() -> Training:
    model = mlp(8, 3, widths=(24, 24), activation="sigmoid")
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=225).parts(), epochs=6)


@healthy("dense")
def count_regression() -> Training:
    """Poisson counts, with an exponential output."""
    data = curve(seed=227)
    rng = np.random.default_rng(2)
    data = data.map_y(lambda y: rng.poisson(np.exp(0.6 * y)).astype("float32"))
    model = mlp(6, 1, head="exponential")
    model.compile(optimizers.Adam(3e-3), "poisson")
    return Training(model, **data.parts(), epochs=5)


@healthy("dense")
def multi_label() -> Training:
    """Four labels that do not exclude each other."""
    rng = np.random.default_rng(228)
    x = rng.normal(size=(576, 8)).astype("float32")
    y = (x[:, :4] + 0.5 * x[:, 4:] > 0).astype("float32")
    model = mlp(8, 4, head="sigmoid")
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["binary_accuracy"])
    return Training(model, x[:480], y[:480], (x[480:], y[480:]), epochs=5)
