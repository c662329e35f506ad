"""Healthy trainings on tables, with losses and optimizers of every day, and custom steps."""

from __future__ import annotations

import keras
import numpy as np
from keras import initializers, layers, losses, ops, optimizers

from diagnosis.case import Training, healthy
from diagnosis.models import Call, OwnStep, mlp
from diagnosis.wild.data import houses, payments, standardised


@healthy("dense")
def house_prices_by_huber() -> Training:
    """Raw columns behind an adapted normalisation; the target is the logarithm of the price."""
    data = houses(seed=701)
    data = data.map_y(lambda y: np.log(y).astype("float32"))
    norm = layers.Normalization(name="normalise")
    norm.adapt(data.x)
    hidden = [layers.Dense(64, "relu", name=f"h{i}") for i in (1, 2)]
    model = keras.Sequential([layers.Input((6,)), norm, *hidden, layers.Dense(1, name="head")])
    model.compile(optimizers.Adam(5e-3), losses.Huber(), metrics=["mae"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@healthy("dense")
def rare_fraud_with_a_prior() -> Training:
    """One payment in fifteen is fraud, and the bias of the output starts at the logarithm of the odds, as the guide says."""
    data = payments(frauds=0.07, seed=702)
    odds = initializers.Constant(float(np.log(0.07 / 0.93)))
    stack = [layers.Dense(32, "relu", name="h1"), layers.Dropout(0.3, seed=1, name="drop")]
    head = layers.Dense(1, "sigmoid", bias_initializer=odds, name="head")
    model = keras.Sequential([layers.Input((8,)), *stack, head])
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["AUC"])
    return Training(model, **data.parts(), epochs=4, batch_size=32)


@healthy("dense")
def noise_is_most_of_the_target() -> Training:
    """A tenth of the variance can be explained and is; the loss falls by a tenth and stays there."""
    rng = np.random.default_rng(703)
    x = rng.normal(size=(1152, 5)).astype("float32")
    y = (x @ rng.normal(size=(5, 1)) * 0.15 + rng.normal(size=(1152, 1))).astype("float32")
    model = mlp(5, 1, head=None, widths=(16,))
    model.compile(optimizers.Adam(2e-3), "mse")
    return Training(model, x[:1024], y[:1024], (x[1024:], y[1024:]), epochs=5, batch_size=32)


@healthy("dense")
def margin_of_a_support_vector_machine() -> Training:
    """Hinge loss on targets of -1 and 1: most samples soon have a loss of exactly zero."""
    data = payments(frauds=0.5, seed=704).map_y(lambda y: 2 * y - 1)
    model = mlp(8, 1, head=None, widths=(32,))
    model.compile(optimizers.SGD(0.05, momentum=0.9), "hinge")
    return Training(model, **data.parts(), epochs=4, batch_size=32)


@healthy("dense")
def whole_data_in_each_step() -> Training:
    """Full-batch descent: one step for each epoch, sixty epochs."""
    data = standardised(houses(n=512, seed=705), log_target=True)
    model = mlp(6, 1, head=None, activation="tanh")
    model.compile(optimizers.SGD(0.1, momentum=0.9), "mse")
    return Training(model, **data.parts(), epochs=60, batch_size=512)


@healthy("dense")
def one_row_in_each_step() -> Training:
    """Online learning: batches of one, with a small rate. Losses jump from row to row."""
    data = payments(n=400, frauds=0.5, seed=706)
    model = mlp(8, 1, head="sigmoid", widths=(16,))
    model.compile(optimizers.SGD(0.02), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=2, batch_size=1)


@healthy("dense")
def wide_beside_deep() -> Training:
    """One-hot columns of rare categories go straight to the output, beside a deep part."""
    rng = np.random.default_rng(707)
    numbers = rng.normal(size=(768, 4)).astype("float32")
    place = np.minimum(rng.zipf(1.5, 768), 30) - 1
    y = (numbers[:, 0] + rng.normal(size=30)[place] * 1.5 > 0).astype("float32")[:, None]
    wide = np.eye(30, dtype="float32")[place]
    a, b = layers.Input((4,), name="numbers"), layers.Input((30,), name="place")
    deep = layers.Dense(24, "relu", name="h1")(a)
    x = layers.Concatenate(name="join")([layers.Dense(16, "relu", name="h2")(deep), b])
    model = keras.Model([a, b], layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adafactor(0.01), "binary_crossentropy", metrics=["accuracy"])
    held = ([numbers[640:], wide[640:]], y[640:])
    return Training(model, [numbers[:640], wide[:640]], y[:640], held, epochs=8)


@healthy("custom")
def experts_behind_a_gate() -> Training:
    """A mixture: four experts, and a gate that gives each a share. A gate may leave an expert alone."""
    data = standardised(houses(seed=708), log_target=True)
    inputs = layers.Input((6,))
    gate = layers.Dense(4, "softmax", name="gate")(inputs)
    experts = [layers.Dense(16, "relu", name=f"expert{i}")(inputs) for i in range(4)]
    stacked = layers.Concatenate(axis=1, name="stack")([layers.Reshape((1, 16))(one) for one in experts])
    mixed = Call(lambda given: ops.einsum("bk,bkf->bf", *given), name="mix")([gate, stacked])
    model = keras.Model(inputs, layers.Dense(1, name="head")(mixed))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=6)


@healthy("custom")
def triplets_with_a_margin() -> Training:
    """Anchor, friend and stranger: the loss of a triplet that is far enough apart is exactly zero, in the end nearly all."""
    rng = np.random.default_rng(709)
    centres = rng.normal(size=(6, 10)) * 1.5

    def drawn(kind):
        return (centres[kind] + rng.normal(size=(480, 10)) * 0.7).astype("float32")

    kind = rng.integers(0, 6, 480)
    triplets = [drawn(kind), drawn(kind), drawn((kind + rng.integers(1, 6, 480)) % 6)]

    class Triplets(OwnStep):
        def objective(self, x, y):
            anchor, friend, stranger = self(x, training=True)
            near, far = ops.sum((anchor - friend) ** 2, -1), ops.sum((anchor - stranger) ** 2, -1)
            return ops.mean(ops.relu(near - far + 1.0))

    inputs = [layers.Input((10,), name=name) for name in ("anchor", "friend", "stranger")]
    encoder = keras.Sequential(
        [layers.Input((10,)), layers.Dense(32, "relu", name="e1"), layers.Dense(8, name="e2")], name="encoder"
    )
    model = Triplets(inputs, [encoder(one) for one in inputs])
    model.compile(optimizers.Adam(2e-3))
    return Training(model, triplets, np.zeros((480, 1), "float32"), None, epochs=5)


@healthy("custom")
def values_of_a_game() -> Training:
    """Q-learning from stored moves: only the chosen action gets a gradient, and the target comes from a frozen copy."""
    rng = np.random.default_rng(710)
    state = rng.uniform(-1, 1, (640, 4)).astype("float32")
    action = rng.integers(0, 3, 640)
    reward = np.where((state[:, 0] > 0) == (action == 1), 1.0, -0.2).astype("float32")
    y = np.stack([action, reward], 1).astype("float32")

    class Values(OwnStep):
        def objective(self, x, y):
            learned, frozen = self(x, training=True)
            goal = y[:, 1] + 0.9 * ops.stop_gradient(ops.max(frozen, -1))
            chosen = ops.sum(learned * ops.one_hot(ops.cast(y[:, 0], "int32"), 3), -1)
            return ops.mean(ops.square(chosen - goal))

    inputs = layers.Input((4,))
    online = keras.Sequential(
        [layers.Input((4,)), layers.Dense(32, "relu", name="o1"), layers.Dense(3, name="o2")], name="online"
    )
    target = keras.Sequential(
        [layers.Input((4,)), layers.Dense(32, "relu", name="t1"), layers.Dense(3, name="t2")], name="target"
    )
    target.trainable = False
    model = Values(inputs, [online(inputs), target(inputs)])
    model.compile(optimizers.Adam(3e-3))
    return Training(model, state, y, None, epochs=5)
