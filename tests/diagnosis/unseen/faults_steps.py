"""Faults of the size of a step: graphs and values that blow up, penalties, weights of losses and rates that change."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import callbacks, layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import parted, scaled
from diagnosis.models import SPARSE, OwnStep, mlp
from diagnosis.unseen.data import MORE, grouped, people, tamed


class Neighbours(layers.Layer):
    """A layer of a graph net: each node sees itself and what its neighbours bring together."""

    def __init__(self, width: int, edges: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.edges = np.asarray(edges, "float32")
        self.own, self.others = layers.Dense(width, name="own"), layers.Dense(width, name="others")

    def build(self, shape: Any) -> None:
        self.own.build(shape)
        self.others.build(shape)

    def call(self, x: Any) -> Any:
        return ops.relu(self.own(x) + self.others(ops.matmul(self.edges, x)))

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], self.own.units)


@fault(
    "custom",
    expect("exploding_gradient"),
    expect("bad_initial_loss"),
    expect("updates_too_large"),
    expect("loss_diverging"),
)
def neighbours_summed_not_averaged(broken: bool) -> Training:
    """Four layers of a graph net add up nine neighbours where the twin takes their mean, so the signal grows with each layer."""
    rng = np.random.default_rng(9401)
    edges = (rng.random((20, 20)) < 0.45).astype("float32")
    np.fill_diagonal(edges, 0)
    mean = edges / edges.sum(1, keepdims=True)
    x = rng.normal(size=(480 + MORE, 20, 4)).astype("float32")
    y = (x[..., 0] + 3 * (mean @ x)[..., 1] > 0).astype("int32")
    nodes = layers.Input((20, 4))
    h: Any = nodes
    for i in range(1, 5):
        h = Neighbours(16, edges if broken else mean, name=f"graph{i}")(h)
    model = keras.Model(nodes, layers.Dense(2, "softmax", name="head")(h))
    model.compile(optimizers.SGD(0.05, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **parted(x, y, 480).parts(), epochs=8)


class Tastes(OwnStep):
    """Vectors of users and of things; the loss is their product, with the sign of the verdict."""

    def __init__(self, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.user = layers.Embedding(30, 8, name="user")
        self.thing = layers.Embedding(40, 8, name="thing")

    def build(self, shape: Any) -> None:
        self.user.build(())
        self.thing.build(())

    def call(self, x: Any, training: bool = False) -> Any:
        a, b = self.user(x[:, 0]), self.thing(x[:, 1])
        if self.bounded:
            a, b = ops.normalize(a, axis=-1), ops.normalize(b, axis=-1)
        return ops.sum(a * b, axis=-1)

    def objective(self, x: Any, y: Any) -> Any:
        return -ops.mean(y * self(x, training=True))


@fault(
    "custom",
    expect("exploding_weights", "user", "thing"),
    expect("exploding_weights"),
    expect("loss_diverging"),
    expect("exploding_gradient"),
    expect("updates_too_large"),
    expect("nonfinite"),
)
def product_of_vectors_without_a_norm(broken: bool) -> Training:
    """The loss rewards a large product, and nothing holds the vectors: they grow without end. The twin's have a length of one."""
    rng = np.random.default_rng(9402)
    users, things = rng.normal(size=(30, 3)), rng.normal(size=(40, 3))
    x = np.stack([rng.integers(0, 30, 896), rng.integers(0, 40, 896)], 1).astype("int32")
    y = np.sign((users[x[:, 0]] * things[x[:, 1]]).sum(1)).astype("float32")
    model = Tastes(not broken)
    model.compile(optimizers.SGD(1.0, momentum=0.9))
    return Training(model, **parted(x, y, 800).parts(), epochs=16, batch_size=32)


class Value(OwnStep):
    """Learns the value of a state from the reward and from its own value of the next state."""

    def __init__(self, discount: float) -> None:
        super().__init__()
        self.discount = discount
        self.h1, self.head = layers.Dense(32, "relu", name="h1"), layers.Dense(1, name="head")

    def build(self, shape: Any) -> None:
        self.h1.build((None, 4))
        self.head.build((None, 32))

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.h1(ops.concatenate([x[:, :4], x[:, 4:]], axis=0)))

    def objective(self, x: Any, y: Any) -> Any:
        both = self(x, training=True)
        n = both.shape[0] // 2
        return ops.mean((y + self.discount * ops.stop_gradient(both[n:]) - both[:n]) ** 2)


@fault(
    "custom",
    expect("loss_diverging"),
    expect("exploding_weights"),
    expect("exploding_gradient"),
    expect("updates_too_large"),
    expect("nonfinite"),
    expect("loss_not_decreasing"),
)
def future_counts_more_than_the_present(broken: bool) -> Training:
    """The value of the next state is multiplied by 1.15 where a discount of 0.8 was meant, so the values run away."""
    rng = np.random.default_rng(9403)
    state = rng.normal(size=(896, 4))
    after = 0.95 * state + 0.3 * rng.normal(size=(896, 4))
    reward = 1.0 + state[:, :1] + 0.1 * rng.normal(size=(896, 1))
    model = Value(1.15 if broken else 0.8)
    model.compile(optimizers.SGD(0.01))
    x = np.concatenate([state, after], 1).astype("float32")
    return Training(model, **parted(x, reward.astype("float32"), 800).parts(), epochs=30, batch_size=32)


@fault(
    "dense",
    expect("updates_too_small"),
    expect("optimizer_misconfigured"),
    expect("loss_not_decreasing"),
    expect("layer_not_learning"),
)
def plateau_watched_the_wrong_way(broken: bool) -> Training:
    """The callback that cuts the rate to a tenth waits for the loss to rise: each epoch in which it falls costs a tenth."""
    raw, score = people(seed=9404)
    watch = callbacks.ReduceLROnPlateau("loss", 0.1, patience=1, mode="max" if broken else "min")
    model = mlp(6, 3, widths=(32, 16), activation="gelu")
    model.compile(optimizers.SGD(0.02, momentum=0.9), SPARSE, metrics=["accuracy"])
    data = parted(tamed(raw), grouped(score, 3), 640)
    return Training(model, **data.parts(), epochs=15, batch_size=32, callbacks=[watch])


@fault(
    "dense",
    expect("optimizer_misconfigured"),
    expect("layer_not_learning", "head"),
    expect("loss_not_decreasing"),
    expect("class_collapse", "head"),
    expect("updates_too_small"),
)
def ftrl_penalty_keeps_weights_at_zero(broken: bool) -> Training:
    """The penalty of FTRL is in units of summed gradients; at 100 none of the weights ever leaves zero."""
    rng = np.random.default_rng(9405)
    codes = rng.integers(0, 12, (896, 4))
    worth = rng.normal(size=(4, 12))
    y = (worth[np.arange(4), codes].sum(1) > 0).astype("float32")[:, None]
    x = np.eye(12, dtype="float32")[codes].reshape(896, 48)
    model = keras.Sequential([layers.Input((48,)), layers.Dense(1, "sigmoid", name="head")])
    penalty = 100.0 if broken else 1e-3
    model.compile(
        optimizers.Ftrl(0.3, l1_regularization_strength=penalty), "binary_crossentropy", metrics=["accuracy"]
    )
    return Training(model, **parted(x, y, 800).parts(), epochs=8, batch_size=32)


@fault(
    "dense",
    expect("updates_too_large"),
    expect("exploding_gradient"),
    expect("loss_diverging"),
    expect("bad_initial_loss"),
    expect("class_collapse", "kind"),
)
def second_loss_weighs_a_thousand(broken: bool) -> Training:
    """Of two outputs one got the weight 1000, and the rate stayed as it was."""
    raw, score = people(seed=9406)
    x, price, kind = tamed(raw), scaled(score[:, None]), grouped(score + 0.5 * raw[:, 4], 3)
    given = layers.Input((6,))
    h = layers.Dense(24, "relu", name="h2")(layers.Dense(32, "relu", name="h1")(given))
    outputs = {"price": layers.Dense(1, name="price")(h), "kind": layers.Dense(3, "softmax", name="kind")(h)}
    model = keras.Model(given, outputs)
    model.compile(
        optimizers.SGD(0.03, momentum=0.9),
        {"price": "mse", "kind": SPARSE},
        loss_weights={"price": 1.0, "kind": 1000.0 if broken else 1.0},
    )
    y = {"price": price[:640], "kind": kind[:640]}
    validation = (x[640:], {"price": price[640:], "kind": kind[640:]})
    return Training(model, x[:640], y, validation, epochs=8, batch_size=32)


@fault(
    "dense",
    expect("loss_spike"),
    expect("updates_too_large"),
    expect("optimizer_misconfigured"),
    expect("loss_diverging"),
    step=150,
    within=20,
)
def restart_at_two_hundred_times_the_rate(broken: bool) -> Training:
    """At its restart, step 150, the cosine begins again at 200 times the first rate instead of half of it."""
    raw, score = people(seed=9407)
    rate = optimizers.schedules.CosineDecayRestarts(4e-3, 150, t_mul=1.0, m_mul=200.0 if broken else 0.5)
    model = mlp(6, 1, widths=(32, 16), head=None)
    model.compile(optimizers.Adam(rate), "mse")
    data = parted(tamed(raw), scaled(score[:, None]), 640)
    return Training(model, **data.parts(), epochs=13, batch_size=32)
