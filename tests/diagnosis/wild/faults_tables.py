"""Faults of dense models on tables: units, losses, activations and optimizers, as questions on Stack Overflow describe them."""

from __future__ import annotations

import keras
import numpy as np
from keras import initializers, layers, losses, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.models import LOGITS, SPARSE, OwnStep, mlp
from diagnosis.wild.data import digits, houses, payments, rings, standardised, unit


@fault(
    "dense",
    expect("input_not_normalised"),
    expect("loss_diverging"),
    expect("exploding_gradient"),
    expect("nonfinite"),
)
def house_table_in_raw_units(broken: bool) -> Training:
    """Square metres beside years beside yearly incomes, straight from the file."""
    raw = houses(seed=601)
    data = standardised(raw)
    if broken:
        data = data.map_x(lambda x: x)
        data.x, data.validation = raw.x, (raw.validation[0], data.validation[1])
    model = mlp(6, 1, head=None, widths=(64, 64))
    model.compile(optimizers.Adam(1e-3), "mse", metrics=["mae"])
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault(
    "dense",
    expect("loss_not_decreasing"),
    expect("label_problem"),
    expect("updates_too_small"),
    expect("bad_initial_loss"),
)
def prices_in_single_euros(broken: bool) -> Training:
    """The target is about 500,000 and each step moves the output by a thousandth: it never gets there."""
    data = standardised(houses(seed=602), log_target=True)
    if broken:
        data = data.map_y(lambda y: (np.exp(y * 0.4) * 500_000).astype("float32"))
    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(1e-3), "mse", metrics=["mae"])
    return Training(model, **data.parts(), epochs=8)


@fault(
    "dense",
    expect("dead_relu", "h1", "h2", "h3"),
    expect("updates_too_large"),
    expect("loss_diverging"),
    expect("exploding_gradient"),
)
def prices_kill_the_relus(broken: bool) -> Training:
    """Targets around 300 with plain SGD: the first steps throw every unit to the dead side, and all houses cost the same."""
    data = standardised(houses(seed=603), log_target=True)
    if broken:
        data = data.map_y(lambda y: (y * 120 + 300).astype("float32"))
    model = mlp(6, 1, head=None, widths=(32, 32, 32))
    model.compile(optimizers.SGD(0.01), "mse")
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("loss_not_decreasing"), expect("class_collapse"))
def lines_through_rings(broken: bool) -> Training:
    """Three dense layers without an activation are one line, and no line parts a ring from what is in it."""
    data = rings(seed=604)
    model = mlp(2, 1, head="sigmoid", activation=None if broken else "relu")
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=10)


@fault(
    "dense",
    expect("vanishing_gradient"),
    expect("loss_not_decreasing"),
    expect("updates_too_small"),
    expect("output_loss_mismatch", "h1", "h2", "h3"),
    expect("saturated", "h1", "h2", "h3"),
)
def softmax_in_every_layer(broken: bool) -> Training:
    """`activation="softmax"` in the hidden layers as well: each hands on numbers of about 1/48."""
    data = unit(digits(seed=605)).map_x(lambda x: x.reshape(len(x), -1))
    model = mlp(144, 10, widths=(48, 48, 48), activation="softmax" if broken else "relu")
    model.compile(optimizers.SGD(0.1, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault(
    "dense",
    expect("bad_initial_loss"),
    expect("exploding_gradient"),
    expect("saturated"),
    expect("updates_too_large"),
)
def weights_with_a_spread_of_one(broken: bool) -> Training:
    """`RandomNormal(stddev=1)` in layers of 128: the signal grows tenfold in each."""
    data = unit(digits(seed=606)).map_x(lambda x: x.reshape(len(x), -1))
    start = initializers.RandomNormal(stddev=1.0, seed=1) if broken else "he_normal"
    model = mlp(144, 10, widths=(128, 128, 128), head=None, kernel_initializer=start)
    model.compile(optimizers.Adam(1e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("output_loss_mismatch", "head"), expect("loss_not_decreasing"), step=0)
def one_softmax_for_many_labels(broken: bool) -> Training:
    """Each row has any number of five tags, but a softmax shares one probability among them."""
    rng = np.random.default_rng(607)
    x = rng.normal(size=(768, 10)).astype("float32")
    y = (x @ rng.normal(size=(10, 5)) > -1).astype("float32")
    model = mlp(10, 5, head="softmax" if broken else "sigmoid")
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["binary_accuracy"])
    return Training(model, x[:640], y[:640], (x[640:], y[640:]), epochs=6)


@fault(
    "dense",
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
    expect("optimizer_misconfigured"),
)
def adadelta_as_it_comes(broken: bool) -> Training:
    """The paper's Adadelta has a rate of 1; Keras's default of 0.001 hardly moves."""
    data = payments(frauds=0.5, seed=608)
    model = mlp(8, 1, head="sigmoid")
    model.compile(optimizers.Adadelta(0.001 if broken else 1.0), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=3)


@fault(
    "dense",
    expect("optimizer_misconfigured"),
    expect("layer_not_learning"),
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
)
def accumulates_for_ever(broken: bool) -> Training:
    """Gradients of 2,000 batches make one update, and the training has 120 batches."""
    data = standardised(houses(seed=609), log_target=True)
    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(5e-3, gradient_accumulation_steps=2000 if broken else 2), "mse")
    return Training(model, **data.parts(), epochs=3)


@fault(
    "dense",
    expect("bad_initial_loss"),
    expect("loss_diverging"),
    expect("updates_too_large"),
    expect("exploding_gradient"),
    expect("nonfinite"),
    expect("dead_relu"),
)
def summed_over_the_batch(broken: bool) -> Training:
    """`reduction="sum"` with a batch of 64 makes the rate 64 times as large."""
    data = unit(digits(seed=610)).map_x(lambda x: x.reshape(len(x), -1))
    model = mlp(144, 10, widths=(64, 64), head=None)
    reduction = "sum" if broken else "sum_over_batch_size"
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(optimizers.SGD(0.2), loss, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=10, batch_size=64)


@fault(
    "custom",
    expect("loss_diverging"),
    expect("exploding_weights"),
    expect("optimizer_misconfigured"),
    expect("updates_too_large"),
)
def climbs_the_loss(broken: bool) -> Training:
    """The custom step minimises the negative of its loss and logs the loss."""

    class Climb(OwnStep):
        def objective(self, x, y):
            loss = super().objective(x, y)
            return 2 * ops.stop_gradient(loss) - loss if broken else loss

    data = standardised(houses(seed=611), log_target=True)
    inputs = layers.Input((6,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    model = Climb(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=5)


@fault("custom", expect("output_loss_mismatch"), expect("loss_not_decreasing"))
def column_against_row(broken: bool) -> Training:
    """Targets of shape (16,) against predictions of (16, 1): their difference is a table, and the best answer is the mean."""

    class Broadcast(OwnStep):
        def objective(self, x, y):
            p = self(x, training=True)
            return ops.mean(ops.square((y if broken else y[:, None]) - p))

    data = standardised(houses(seed=612), log_target=True).map_y(lambda y: y[:, 0])
    inputs = layers.Input((6,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    model = Broadcast(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault("custom", expect("layer_not_learning", "wrap", "hidden"), note=True)
def layer_inside_a_lambda(broken: bool) -> Training:
    """A dense layer called from a lambda belongs to nobody, so the optimizer never sees its weights."""
    data = payments(frauds=0.5, seed=613)
    inputs = layers.Input((8,))
    hidden = layers.Dense(16, "relu", name="hidden")
    hidden.build((None, 8))
    x = layers.Lambda(lambda x: hidden(x), name="wrap")(inputs) if broken else hidden(inputs)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=3)
