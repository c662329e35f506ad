"""Faults of arithmetic: NaN and Inf that people write themselves, and how they first show."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import Data
from diagnosis.models import SPARSE, Call, OwnStep
from diagnosis.wild.data import digits, heartbeats, payments, reviews, sales, unit


@fault("dense", expect("nonfinite", "standardise"), step=30)
def spread_of_one_row(broken: bool) -> Training:
    """A layer divides by the spread of the batch, of n - 1 rows. The last batch has one row: 0 / 0."""
    data = payments(n=481, frauds=0.5, seed=641)

    def standardise(x):
        n = ops.cast(ops.shape(x)[0], "float32")
        middle = ops.mean(x, 0, keepdims=True)
        variance = ops.sum(ops.square(x - middle), 0, keepdims=True) / (n - 1.0 if broken else n)
        return (x - middle) / ops.sqrt(variance + 1e-3)

    inputs = layers.Input((8,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    x = Call(standardise, name="standardise")(x)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=3)


@fault("conv", expect("nonfinite", "root"), step=0, note=True)
def root_of_relu(broken: bool) -> Training:
    """A square root behind a ReLU is finite at 0, and its slope there is not. The ReLU cuts it off, so a note is enough."""
    data = unit(digits(seed=642))
    inputs = layers.Input((12, 12, 1))
    x = layers.Conv2D(12, 3, activation="relu", name="conv1")(inputs)
    x = Call(lambda x: ops.sqrt(x + (0.0 if broken else 1e-2)), name="root")(x)
    x = layers.Flatten(name="flatten")(x)
    model = keras.Model(inputs, layers.Dense(10, "softmax", name="head")(x))
    model.compile(optimizers.Adam(2e-3), SPARSE)
    return Training(model, **data.parts(), epochs=4, batch_size=32)


@fault("custom", expect("nonfinite", "amounts"), step=0)
def where_hides_the_logarithm(broken: bool) -> Training:
    """`where(x > 0, log(x), 0)`: the forward pass is right, and the gradient of the branch not taken is 0 · Inf."""
    data = payments(frauds=0.5, seed=643)

    def amounts(x):
        safe = x if broken else ops.where(x > 0, x, 1.0)
        return ops.where(x > 0, ops.log(safe), 0.0)

    inputs = layers.Input((8,))
    x = layers.Dense(16, "relu", name="h1")(inputs)
    x = Call(amounts, name="amounts")(x)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=3)


@fault("attention", expect("nonfinite", "weigh"), step=17)
def softmax_written_by_hand(broken: bool) -> Training:
    """exp(scores) / sum: one loud recording, in batch 17, overflows it."""
    data = heartbeats(seed=644).map_x(lambda x: x.reshape(len(x), 12, 4))
    data.x[16 * 17 + 3] *= 30

    def weigh(x):
        scores = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        if not broken:
            scores = scores - ops.max(scores, -1, keepdims=True)
        grown = ops.exp(scores)
        return ops.matmul(grown / ops.sum(grown, -1, keepdims=True), ops.tanh(x))

    inputs = layers.Input((12, 4))
    x = layers.Dense(8, name="project")(inputs)
    x = layers.Flatten(name="flatten")(Call(weigh, name="weigh")(x))
    model = keras.Model(inputs, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **data.parts(), epochs=2, shuffle=False)


@fault("recurrent", expect("nonfinite", "relative"), step=9)
def change_since_yesterday(broken: bool) -> Training:
    """Sales as changes in percent: a shop that was closed yesterday, in batch 9, divides by zero."""
    data = sales(seed=645)
    x = np.exp(data.x).astype("float32")
    x[16 * 9 + 5, 10] = 0
    data = Data(x, data.y, (np.exp(data.validation[0]).astype("float32"), data.validation[1]))

    def relative(x):
        before = x[:, :-1]
        change = x[:, 1:] / (before if broken else ops.maximum(before, 1e-2)) - 1
        return change if broken else ops.clip(change, -3, 3)

    inputs = layers.Input((28, 1))
    x = layers.GRU(16, name="gru")(Call(relative, name="relative")(inputs))
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=3, shuffle=False)


@fault("attention", expect("nonfinite", "unit"), step=12)
def unit_vectors_of_padding(broken: bool) -> Training:
    """Word vectors are divided by their length. A review without words, in batch 12, has only vectors of zeros."""
    data = reviews(seed=646)
    data.x[16 * 12 + 7] = 0

    def to_unit(x):
        return x / ops.sqrt(ops.sum(ops.square(x), -1, keepdims=True) + (0.0 if broken else 1e-6))

    words = layers.Input((24,), dtype="int32")
    x = layers.Embedding(200, 16, name="embedding")(words)
    shown = ops.cast(ops.expand_dims(ops.not_equal(words, 0), -1), "float32")
    x = layers.Multiply(name="masked")([x, shown])
    total = Call(lambda x: ops.sum(x, 1), name="total")(x)
    x = Call(to_unit, name="unit")(total)
    x = layers.Dense(16, "relu", name="h1")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE)
    return Training(model, **data.parts(), epochs=2, shuffle=False)


@fault("custom", expect("nonfinite", "norm"))
def epsilon_too_small_for_half(broken: bool) -> Training:
    """1e-8 is zero in float16, and a constant row has no variance: 0 / 0."""
    data = payments(frauds=0.5, seed=647)
    data.x[16 * 20 + 1] = 0.5

    def norm(x):
        half = ops.cast(x, "float16")
        middle = ops.mean(half, -1, keepdims=True)
        variance = ops.mean(ops.square(half - middle), -1, keepdims=True)
        epsilon = ops.cast(1e-8 if broken else 1e-3, "float16")
        return ops.cast((half - middle) / ops.sqrt(variance + epsilon), "float32")

    inputs = layers.Input((8,))
    x = layers.Dense(16, "relu", name="h1")(Call(norm, name="norm")(inputs))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=2, shuffle=False)


@fault("custom", expect("nonfinite"), expect("output_loss_mismatch", "head"))
def cross_entropy_written_by_hand(broken: bool) -> Training:
    """-y log(p) - (1 - y) log(1 - p) in a custom step, without a clip: 0 · log 0 once the model is sure."""

    class ByHand(OwnStep):
        def objective(self, x, y):
            p = self(x, training=True)
            p = p if broken else ops.clip(p, 1e-6, 1 - 1e-6)
            return -ops.mean(y * ops.log(p) + (1 - y) * ops.log(1 - p))

    data = payments(frauds=0.5, seed=648).map_x(lambda x: x * 4)
    data.x[:, 7] = data.y[:, 0] * 8 - 4
    inputs = layers.Input((8,))
    x = layers.Dense(64, "relu", name="h1")(inputs)
    model = ByHand(inputs, layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(2e-2))
    return Training(model, **data.parts(), epochs=4)
