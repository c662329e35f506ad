"""Healthy programs of other shapes: own training steps, two players, autoencoders, contrast, mixed precision, weights of samples.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, losses, ops, optimizers

from diagnosis.case import Training, healthy
from diagnosis.models import mlp


class Sampling(layers.Layer):
    """A draw around the mean, and the divergence from the unit normal as a loss."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.random = keras.random.SeedGenerator(7)

    def call(self, inputs):
        mean, log_variance = inputs
        spread = ops.exp(0.5 * log_variance)
        apart = 0.5 * ops.mean(ops.sum(ops.square(mean) + ops.exp(log_variance) - log_variance - 1, -1))
        self.add_loss(0.02 * apart)
        return mean + spread * keras.random.normal(ops.shape(mean), seed=self.random)


@healthy("custom")
def variational_autoencoder() -> Training:
    rng = np.random.default_rng(284)
    causes = rng.normal(size=(576, 2))
    x = np.tanh(causes @ rng.normal(size=(2, 10)) + rng.normal(size=(576, 10)) * 0.1).astype("float32")
    inputs = layers.Input((10,))
    h = layers.Dense(24, "relu", name="down")(inputs)
    code = Sampling(name="sampling")(
        [layers.Dense(2, name="mean")(h), layers.Dense(2, name="log_variance")(h)]
    )
    h = layers.Dense(24, "relu", name="up")(code)
    model = keras.Model(inputs, layers.Dense(10, name="head")(h))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, x[:480], x[:480], (x[480:], x[480:]), epochs=7)


@healthy("custom")
def cosine_embedding() -> Training:
    """The loss is a negative cosine, between -1 and 1."""
    rng = np.random.default_rng(293)
    x = rng.normal(size=(576, 8)).astype("float32")
    y = (np.tanh(x @ rng.normal(size=(8, 5))) + 0.05 * rng.normal(size=(576, 5))).astype("float32")
    model = mlp(8, 5, head=None)
    model.compile(optimizers.Adam(3e-3), losses.CosineSimilarity())
    return Training(model, x[:480], y[:480], (x[480:], y[480:]), epochs=5)
