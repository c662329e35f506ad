"""Faults in steps, losses and layers that people write themselves: mixtures, towers, forgers, graphs and bootstrapped values."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import binary, parted, scaled
from diagnosis.models import Call, OwnStep
from diagnosis.unseen.data import MORE, people, scenes, split, tamed


@fault("custom", expect("nonfinite"), step=0, within=1)
def density_of_a_mixture_underflows(broken: bool) -> Training:
    """A mixture of three bells over 96 readings: the density is a product of 96 numbers, and its logarithm is taken at the end."""
    rng = np.random.default_rng(9301)
    x = rng.normal(size=(640 + MORE, 4))
    side = np.where(rng.random((len(x), 1)) < 0.5, 1.0, -1.0)
    y = scaled(side * np.tanh(x @ rng.normal(size=(4, 96))) + 0.2 * rng.normal(size=(len(x), 96)))

    def loss(y: Any, out: Any) -> Any:
        share = ops.log_softmax(out[:, :3], axis=-1)
        spread = out[:, 3:6]
        apart = ops.sum((y[:, None] - ops.reshape(out[:, 6:], (-1, 3, 96))) ** 2, axis=-1)
        bell = -0.5 * apart * ops.exp(-2 * spread) - 96 * (spread + 0.919)
        if broken:
            return -ops.log(ops.sum(ops.exp(share) * ops.exp(bell), axis=-1)) / 96
        return -ops.logsumexp(share + bell, axis=-1) / 96

    model = keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dense(48, "tanh", name="h1"),
            layers.Dense(48, "tanh", name="h2"),
            layers.Dense(294, name="bells"),
        ]
    )
    model.compile(optimizers.Adam(4e-3), loss)
    return Training(model, **parted(x.astype("float32"), y, 640).parts(), epochs=10, batch_size=32)


@fault("custom", expect("nonfinite"))
def mean_over_the_positives_of_a_batch(broken: bool) -> Training:
    """The loss takes the mean over the positive rows and over the negative ones; some batches have no positive row."""
    raw, score = people(n=800, seed=9302)
    y = (score > np.quantile(score, 0.92)).astype("float32")[:, None]

    def loss(y: Any, p: Any) -> Any:
        p = ops.clip(p, 1e-6, 1 - 1e-6)
        least = 0.0 if broken else 1.0
        yes = ops.sum(-y * ops.log(p)) / ops.maximum(ops.sum(y), least)
        no = ops.sum(-(1 - y) * ops.log(1 - p)) / ops.maximum(ops.sum(1 - y), least)
        return 0.5 * (yes + no)

    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(32, "elu", name="h1"),
            layers.Dense(16, "elu", name="h2"),
            layers.Dense(1, "sigmoid", name="head"),
        ]
    )
    model.compile(optimizers.AdamW(3e-3), loss)
    return Training(model, **parted(tamed(raw), y, 800).parts(), epochs=8, batch_size=32)


@fault(
    "custom",
    expect("nonfinite", "log", "share"),
    expect("precision_underflow"),
    expect("nonfinite"),
)
def epsilon_vanishes_in_half_precision(broken: bool) -> Training:
    """A cross-entropy by hand in float16, where 1e-10 is zero and a sure 0.9999 is 1: the logarithm of zero follows."""
    least = 1e-10 if broken else 1e-3

    def logs(p: Any) -> Any:
        tiny = ops.cast(least, p.dtype)
        return ops.concatenate([ops.log(p + tiny), ops.log(1 - p + tiny)], axis=-1)

    def loss(y: Any, both: Any) -> Any:
        return -(y[:, 0] * both[:, 0] + (1 - y[:, 0]) * both[:, 1])

    half: dict[str, Any] = {"dtype": "mixed_float16"}
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(48, "relu", name="h1", **half),
            layers.Dense(48, "relu", name="h2", **half),
            layers.Dense(1, "sigmoid", name="share", **half),
            Call(logs, name="log", **half),
        ]
    )
    model.compile(optimizers.LossScaleOptimizer(optimizers.Adam(4e-3), initial_scale=64.0), loss)
    return Training(model, **binary(n=640, spread=0.6, seed=9303).parts(), epochs=8)


class Towers(keras.Model):
    """Two towers whose ends are joined, or, by a slip, the end of the first one twice."""

    def __init__(self, slip: bool) -> None:
        super().__init__()
        self.slip = slip
        self.tower_a = layers.Dense(24, "relu", name="tower_a")
        self.tower_b = layers.Dense(24, "relu", name="tower_b")
        self.mix = layers.Dense(24, "relu", name="mix")
        self.head = layers.Dense(1, "sigmoid", name="head")

    def build(self, shapes: Any) -> None:
        self.tower_a.build(shapes[0])
        self.tower_b.build(shapes[1])
        self.mix.build((None, 48))
        self.head.build((None, 24))

    def call(self, given: Any) -> Any:
        a, b = self.tower_a(given[0]), self.tower_b(given[1])
        return self.head(self.mix(ops.concatenate([a, a if self.slip else b], axis=-1)))


@fault("custom", expect("layer_not_learning", "tower_b"), step=0, within=20)
def second_tower_is_dropped(broken: bool) -> Training:
    """The first tower is joined with itself; the second is computed and goes nowhere."""
    rng = np.random.default_rng(9304)
    raw, score = people(seed=9304)
    other = rng.normal(size=(len(raw), 5)).astype("float32")
    y = (score + 2 * other[:, 0] - 1.5 * other[:, 1] > 0).astype("float32")[:, None]
    model = Towers(broken)
    model.compile(optimizers.Adam(4e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **split([tamed(raw), other], y, 640), epochs=8, batch_size=32)


class Forgery(OwnStep):
    """A forger and a judge in one step. The forger climbs the loss of the judge, through a gradient that changes its sign."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.detached = detached
        self.forger1 = layers.Dense(24, "relu", name="forger1")
        self.forger2 = layers.Dense(4, name="forger2")
        self.judge1 = layers.Dense(24, "leaky_relu", name="judge1")
        self.judge2 = layers.Dense(1, name="judge2")

    def build(self, shape: Any) -> None:
        self.forger1.build((None, 4))
        self.forger2.build((None, 24))
        self.judge1.build((None, 4))
        self.judge2.build((None, 24))

    def call(self, x: Any, training: bool = False) -> Any:
        real, noise = x[:, :4], x[:, 4:]
        forged = self.forger2(self.forger1(noise))
        still = ops.stop_gradient(forged)
        shown = still if self.detached else 2 * still - forged
        return self.judge2(self.judge1(ops.concatenate([real, shown], axis=0)))

    def objective(self, x: Any, y: Any) -> Any:
        score = self(x, training=True)
        n = score.shape[0] // 2
        return ops.mean(ops.softplus(-score[:n])) + ops.mean(ops.softplus(score[n:]))


@fault("custom", expect("layer_not_learning", "forger1", "forger2"), step=0, within=20)
def judge_is_shown_detached_forgeries(broken: bool) -> Training:
    """Forgeries are cut off from the forger, as they should be for the judge's own step only: the forger never learns."""
    rng = np.random.default_rng(9305)
    real = rng.normal(size=(736, 4)) @ rng.normal(size=(4, 4)) * 0.4 + np.array([1.5, -1.0, 0.5, 2.0])
    x = np.concatenate([real, rng.normal(size=(736, 4))], 1).astype("float32")
    model = Forgery(broken)
    model.compile(optimizers.Adam(2e-3, beta_1=0.5))
    return Training(model, **parted(x, np.zeros((736, 1), "float32"), 640).parts(), epochs=10, batch_size=32)


class Drawn(layers.Layer):
    """A code drawn around its mean, with the divergence from a standard normal as a loss."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seed = keras.random.SeedGenerator(7)

    def call(self, given: Any) -> Any:
        mean, log_variance = given
        apart = ops.exp(log_variance) + mean**2 - 1.0 - log_variance
        self.add_loss(5e-4 * ops.mean(ops.sum(apart, axis=-1)))
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seed)


@fault("custom", expect("nonfinite"), expect("input_not_normalised"))
def variational_autoencoder_of_bytes(broken: bool) -> Training:
    """Pixels up to 255 make logarithms of variances in the hundreds, and their exponential is infinite."""
    x, _, _ = scenes(size=8, colours=1, seed=9306)
    x = x if broken else x / 255
    pixels = layers.Input((8, 8, 1))
    h = layers.Dense(48, "relu", name="squeeze")(layers.Flatten(name="flatten")(pixels))
    mean, spread = layers.Dense(6, name="mean")(h), layers.Dense(6, name="log_variance")(h)
    h = layers.Dense(48, "relu", name="widen")(Drawn(name="drawn")([mean, spread]))
    model = keras.Model(pixels, layers.Reshape((8, 8, 1), name="picture")(layers.Dense(64, name="flat")(h)))
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **parted(x, x, 320).parts(), epochs=10)
