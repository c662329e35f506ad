"""Healthy programs of other shapes: own training steps, two players, autoencoders, contrast, mixed precision, weights of samples."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, losses, ops, optimizers

from diagnosis.case import Training, healthy
from diagnosis.data import blobs, curve, images, waves
from diagnosis.models import SPARSE, Call, OwnStep, convnet, mlp


@healthy("custom")
def own_training_step() -> Training:
    inputs = layers.Input((8,))
    x = layers.Dense(24, "relu", name="encoder")(inputs)
    model = OwnStep(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE)
    return Training(model, **blobs(seed=280).parts(), epochs=5)


@healthy("custom")
def mixup_in_own_step() -> Training:
    """Rows and targets are mixed with those of the neighbour before the usual step."""
    data = blobs(seed=281).map_y(lambda y: np.eye(3, dtype="float32")[y])

    class Mixup(OwnStep):
        def objective(self, x, y):
            mixed = 0.8 * x + 0.2 * ops.roll(x, 1, axis=0)
            return super().objective(mixed, 0.8 * y + 0.2 * ops.roll(y, 1, axis=0))

    inputs = layers.Input((8,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    model = Mixup(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), "categorical_crossentropy")
    return Training(model, **data.parts(), epochs=6)


@healthy("custom")
def autoencoder() -> Training:
    """Through a bottleneck of 3, back to 10 columns that have 3 causes."""
    rng = np.random.default_rng(282)
    causes = rng.normal(size=(576, 3))
    x = (causes @ rng.normal(size=(3, 10)) / 3**0.5 + rng.normal(size=(576, 10)) * 0.1).astype("float32")
    model = keras.Sequential(
        [
            layers.Input((10,)),
            layers.Dense(16, "relu", name="down"),
            layers.Dense(3, name="code"),
            layers.Dense(16, "relu", name="up"),
            layers.Dense(10, name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, x[:480], x[:480], (x[480:], x[480:]), epochs=6)


@healthy("custom")
def denoising_convnet() -> Training:
    data = images(seed=283, noise=0.2)
    rng = np.random.default_rng(0)

    def noisy(x):
        return (x + rng.normal(size=x.shape) * 0.5).astype("float32")

    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2DTranspose(8, 3, padding="same", activation="relu", name="deconv"),
            layers.Conv2D(1, 3, padding="same", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), "mse")
    held = data.validation[0]
    return Training(model, noisy(data.x), data.x, (noisy(held), held), epochs=5)


@healthy("custom")
def two_players() -> Training:
    """GAN-like: the critic tells real rows from made ones while the generator learns to fool it; the losses hover by nature."""
    rng = np.random.default_rng(285)
    real = (rng.normal(size=(480, 4)) * 0.5 + np.array([1.0, -1.0, 0.5, 0.0])).astype("float32")
    noise = rng.normal(size=(480, 4)).astype("float32")

    class Reverse(layers.Layer):
        """The gradient turns around, so that one optimizer trains both players."""

        def call(self, x):
            return 2 * ops.stop_gradient(x) - x

    seed, truth = layers.Input((4,), name="seed"), layers.Input((4,), name="truth")
    made = layers.Dense(4, name="made")(layers.Dense(16, "relu", name="generator")(seed))
    critic = keras.Sequential(
        [layers.Input((4,)), layers.Dense(16, "leaky_relu", name="c1"), layers.Dense(1, name="c2")],
        name="critic",
    )
    verdicts = layers.Concatenate(name="verdicts")([critic(truth), critic(Reverse(name="reverse")(made))])
    model = keras.Model([seed, truth], verdicts)
    model.compile(optimizers.Adam(2e-3, beta_1=0.5), losses.BinaryCrossentropy(from_logits=True))
    y = np.tile(np.float32([[1, 0]]), (480, 1))
    return Training(model, [noise, real], y, ([noise[:64], real[:64]], y[:64]), epochs=6)


@healthy("custom")
def contrastive_pairs() -> Training:
    """Two views of the same row are to be near each other, and far from the other rows of the batch."""
    data = blobs(seed=286, features=12)
    rng = np.random.default_rng(0)
    views = [(data.x + rng.normal(size=data.x.shape) * 0.3).astype("float32") for _ in range(2)]

    class Contrast(OwnStep):
        def objective(self, x, y):
            first, second = self(x, training=True)
            likeness = ops.matmul(first, ops.transpose(second)) / 0.2
            return ops.mean(
                losses.sparse_categorical_crossentropy(ops.arange(16), likeness, from_logits=True)
            )

    inputs = [layers.Input((12,), name="one"), layers.Input((12,), name="two")]
    encoder = keras.Sequential(
        [layers.Input((12,)), layers.Dense(32, "relu", name="e1"), layers.Dense(8, name="e2"), layers.UnitNormalization(name="unit")],
        name="encoder",
    )  # fmt: skip
    model = Contrast(inputs, [encoder(inputs[0]), encoder(inputs[1])])
    model.compile(optimizers.Adam(3e-3))
    y = np.zeros((480, 1), "float32")
    return Training(model, views, y, None, epochs=5)


@healthy("conv")
def mixed_float16_convnet() -> Training:
    """Mixed precision as the guide has it, with the optimizer that scales the loss."""
    policy = keras.DTypePolicy("mixed_float16")
    change = {name: {"dtype": policy} for name in ("conv1", "conv2")}
    model = convnet(3, change={**change, "head": {"dtype": "float32"}})
    optimizer = optimizers.LossScaleOptimizer(optimizers.Adam(3e-3), initial_scale=2.0**10)
    model.compile(optimizer, SPARSE, metrics=["accuracy"])
    return Training(model, **images(seed=287).parts(), epochs=5)


@healthy("dense")
def mixed_bfloat16_dense() -> Training:
    model = mlp(8, 3, dtype=keras.DTypePolicy("mixed_bfloat16"), change={"head": {"dtype": "float32"}})
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **blobs(seed=288).parts(), epochs=5)


@healthy("custom")
def straight_through_rounding() -> Training:
    """A rounding whose gradient is that of the identity, as it should be."""
    data = waves(seed=289)
    model = keras.Sequential(
        [
            layers.Input((12, 2)),
            layers.Flatten(name="flatten"),
            layers.Dense(24, "tanh", name="h1"),
            Call(lambda x: x + ops.stop_gradient(ops.round(x * 4) / 4 - x), name="round"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=7)


@healthy("custom")
def distance_to_prototypes() -> Training:
    """A custom layer with weights of its own; the scores are distances, so they are negative."""

    class Prototypes(layers.Layer):
        def build(self, shape):
            self.points = self.add_weight((3, shape[-1]), "glorot_normal", name="points")

        def call(self, x):
            return -ops.sum(ops.square(x[:, None, :] - self.points[None]), -1)

    inputs = layers.Input((8,))
    x = Prototypes(name="prototypes")(layers.Dense(6, name="h1")(inputs))
    model = keras.Model(inputs, x)
    model.compile(
        optimizers.Adam(1e-2), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return Training(model, **blobs(seed=290).parts(), epochs=5)


@healthy("custom")
def quantile_regression() -> Training:
    """A custom loss: the 0.9 quantile."""

    def pinball(y, predicted):
        error = y - predicted
        return ops.mean(ops.maximum(0.9 * error, -0.1 * error), -1)

    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(3e-3), pinball)
    return Training(model, **curve(seed=291, noise=0.3).parts(), epochs=6)


@healthy("custom")
def negative_log_likelihood() -> Training:
    """Mean and spread of a normal distribution; the loss falls below zero, as densities may."""
    data = curve(seed=292, noise=0.02).map_y(lambda y: 0.2 * y)

    def unlikelihood(y, predicted):
        log_spread = ops.clip(predicted[:, 1:], -4.0, 4.0)
        return ops.mean(log_spread + 0.5 * ops.square((y - predicted[:, :1]) / ops.exp(log_spread)), -1)

    model = mlp(6, 2, head=None)
    model.compile(optimizers.Adam(3e-3), unlikelihood)
    return Training(model, **data.parts(), epochs=6)


@healthy("conv")
def pixels_by_cross_entropy() -> Training:
    """An autoencoder with sigmoid outputs and a cross-entropy on grey pixels: the targets are neither 0 nor 1."""
    data = images(seed=294, noise=0.2)
    low, high = data.x.min(), data.x.max()
    data = data.map_x(lambda x: (x - low) / (high - low))
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="conv2"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid", name="head"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), "binary_crossentropy")
    held = data.validation[0]
    return Training(model, data.x, data.x, (held, held), epochs=5)
