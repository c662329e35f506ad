"""Faults that were added later, after questions on Stack Overflow and the fault lists of published checkers.

Held out, and scored as a part of their own: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import initializers, layers, ops, optimizers, regularizers
from keras.optimizers import schedules

from diagnosis.case import Training, expect, fault
from diagnosis.data import binary, blobs, curve, images, tokens, waves
from diagnosis.models import LOGITS, SPARSE, Call, convnet, mlp


@fault("dense", expect("input_not_normalised"), expect("loss_spike"), expect("bad_initial_loss"))
def missing_coded_as_9999(broken: bool) -> Training:
    """A sensor writes -9999 where it has no reading; one reading in twenty is missing."""

    def gaps(x):
        rng = np.random.default_rng(1)
        return np.where(rng.random(x.shape) < 0.05, -9999.0 if broken else 0.0, x).astype("float32")

    data = curve(seed=401).map_x(gaps)
    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault(
    "conv",
    expect("input_not_normalised"),
    expect("vanishing_gradient"),
    expect("loss_not_decreasing"),
    expect("updates_too_small"),
    expect("class_collapse"),
)
def pixels_rescaled_twice(broken: bool) -> Training:
    """Pixels are divided by 255 when they are read, and by 255 once more in the model."""
    data = images(seed=402).map_x(lambda x: np.clip(0.5 + 0.15 * x, 0, 1).astype("float32"))
    stack = [
        layers.Input((8, 8, 1)),
        layers.Rescaling(1 / 255 if broken else 2.0, offset=0.0 if broken else -1.0, name="rescale"),
        layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"),
        layers.Conv2D(12, 3, strides=2, padding="same", activation="relu", name="conv2"),
        layers.Flatten(name="flatten"),
        layers.Dense(3, "softmax", name="head"),
    ]
    model = keras.Sequential(stack)
    model.compile(optimizers.SGD(0.1), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8)


@fault(
    "dense",
    expect("dropout_too_high", "drop"),
    expect("output_loss_mismatch"),
    expect("bad_initial_loss"),
    expect("loss_not_decreasing"),
    expect("nonfinite", "drop", "head"),
)
def dropout_behind_the_softmax(broken: bool) -> Training:
    """Dropout sets the probability of the right class to zero half of the time, and now and then all of them: 0/0."""
    data = blobs(seed=403)
    inputs = layers.Input((8,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    if not broken:
        x = layers.Dropout(0.5, seed=1, name="drop")(x)
    x = layers.Dense(3, "softmax", name="head")(x)
    if broken:
        x = layers.Dropout(0.5, seed=1, name="drop")(x)
    model = keras.Model(inputs, x)
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault(
    "recurrent",
    expect("optimizer_misconfigured"),
    expect("updates_too_large"),
    expect("loss_diverging"),
    expect("exploding_weights"),
)
def exponential_growth_of_the_rate(broken: bool) -> Training:
    """The decay rate of a schedule is above one: the learning rate grows by 6 % at each step."""
    data = waves(seed=404)
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.GRU(16, name="gru"), layers.Dense(2, "softmax", name="head")]
    )
    rate = schedules.ExponentialDecay(5e-3, decay_steps=1, decay_rate=1.06 if broken else 0.999)
    model.compile(optimizers.Adam(rate), SPARSE)
    return Training(model, **data.parts(), epochs=6)


@fault(
    "recurrent",
    expect("exploding_gradient"),
    expect("loss_diverging"),
    expect("updates_too_large"),
    expect("bad_initial_loss"),
    expect("nonfinite"),
    expect("exploding_weights"),
)
def recurrence_with_relu(broken: bool) -> Training:
    """`activation="relu"` in a recurrent layer over forty steps: the state has no bound."""
    data = waves(seed=405, length=40)
    start = initializers.Orthogonal(1.6)
    layer = layers.SimpleRNN(
        24, activation="relu" if broken else "tanh", recurrent_initializer=start, name="rnn"
    )
    model = keras.Sequential([layers.Input((40, 2)), layer, layers.Dense(2, name="head")])
    model.compile(optimizers.SGD(0.03), LOGITS)
    return Training(model, **data.parts(), epochs=5)


@fault("custom", expect("nonfinite", "angle"), step=11)
def angle_of_parallel_rows(broken: bool) -> Training:
    """The angle between two vectors by arccos: its slope is infinite where they are parallel, as in the row of batch 11."""
    rng = np.random.default_rng(406)
    x = rng.normal(size=(320, 2, 6)).astype("float32")
    y = (x[:, 0] * x[:, 1]).sum(1, keepdims=True).astype("float32") / 3
    x[16 * 11 + 4] = np.array([[1, 0, 0, 0, 0, 0]] * 2)
    keep = 1.0 if broken else 1 - 1e-5

    def angle(pair):
        one, other = pair[:, 0], pair[:, 1]
        lengths = ops.sqrt(ops.sum(one * one, -1) * ops.sum(other * other, -1) + 1e-12)
        cosine = ops.sum(one * other, -1) / lengths
        return ops.arccos(ops.clip(cosine, -keep, keep))[:, None]

    inputs = layers.Input((2, 6))
    scaled = layers.EinsumDense("abc,c->abc", output_shape=(2, 6), kernel_initializer="ones", name="scale")
    x1 = Call(angle, name="angle")(scaled(inputs))
    x1 = layers.Dense(8, "tanh", name="h1")(x1)
    model = keras.Model(inputs, layers.Dense(1, name="head")(x1))
    model.compile(optimizers.SGD(0.02), "mse")
    return Training(model, x, y, (x[:64], y[:64]), epochs=3, shuffle=False)


@fault("attention", expect("nonfinite", "norm"), step=14)
def layernorm_of_blank_rows(broken: bool) -> Training:
    """Layer normalisation with an epsilon of zero meets a sentence whose vectors are all zero, in batch 14."""
    data = blobs(seed=407).map_x(lambda x: x.reshape(-1, 4, 2))
    data.x[16 * 14 + 2] = 0
    inputs = layers.Input((4, 2))
    x = layers.Dense(16, use_bias=False, name="project")(inputs)
    x = layers.LayerNormalization(epsilon=0.0 if broken else 1e-3, name="norm")(x)
    x = layers.Add(name="add")([x, layers.MultiHeadAttention(2, 8, name="attn")(x, x)])
    x = layers.Flatten(name="flatten")(x)
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.Adam(2e-3), SPARSE)
    return Training(model, **data.parts(), epochs=3, shuffle=False)


@fault("custom", expect("nonfinite", "total"), step=0)
def sum_overflows_float16(broken: bool) -> Training:
    """A sum of squares over 4,000 numbers does not fit into half precision."""
    rng = np.random.default_rng(408)
    x = (rng.normal(size=(256, 4000)) * rng.uniform(3, 6, (256, 1))).astype("float32")
    y = (x.std(1, keepdims=True) > 4.5).astype("float32")

    def total(x):
        half = ops.cast(x, "float16" if broken else "float32")
        return ops.cast(ops.sum(half * half, -1, keepdims=True), "float32") / 40_000 - 2

    inputs = layers.Input((4000,))
    h = layers.Dense(8, "tanh", name="h1")(Call(total, name="total")(inputs))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", name="head")(h))
    model.compile(optimizers.Adam(1e-2), "binary_crossentropy")
    return Training(model, x[:208], y[:208], (x[208:], y[208:]), epochs=5)


@fault("custom", expect("layer_not_learning", "amount", "branch"), note=True)
def one_loss_weighted_zero(broken: bool) -> Training:
    """Two outputs; the loss of the second has the weight 0."""
    data = blobs(seed=409)

    def both(y):
        return {"kind": y, "amount": (y[:, None] - 1).astype("float32")}

    inputs = layers.Input((8,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    branch = layers.Dense(8, "relu", name="branch")(x)
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(x),
        "amount": layers.Dense(1, name="amount")(branch),
    }
    model = keras.Model(inputs, outputs)
    weights = {"kind": 1.0, "amount": 0.0 if broken else 0.5}
    model.compile(optimizers.Adam(5e-3), {"kind": SPARSE, "amount": "mse"}, loss_weights=weights)
    held = (data.validation[0], both(data.validation[1]))
    return Training(model, data.x, both(data.y), held, epochs=5)


@fault(
    "conv",
    expect("class_collapse"),
    expect("optimizer_misconfigured"),  # since it looks at penalties of layers
    expect("bad_initial_loss"),
    expect("vanishing_gradient"),
    expect("loss_not_decreasing"),
    expect("dead_relu"),
)
def penalty_of_ten(broken: bool) -> Training:
    """An L2 penalty so strong that all weights go to zero, and every picture gets the same answer."""
    data = images(seed=410)
    penalty = regularizers.L2(10.0 if broken else 1e-4)
    change = {name: {"kernel_regularizer": penalty} for name in ("conv1", "conv2", "head")}
    model = convnet(3, change=change)
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8)


@fault(
    "dense",
    expect("layer_not_learning"),
    expect("vanishing_gradient"),
    expect("loss_not_decreasing"),
    expect("updates_too_small"),
)
def loss_counts_errors(broken: bool) -> Training:
    """The share of wrong answers as the loss: rounding has no slope."""
    data = binary(seed=411)

    def wrong(y, p):
        return ops.mean(ops.abs(y - (ops.round(p) if broken else p)), -1)

    model = mlp(8, 1, head="sigmoid")
    model.compile(optimizers.Adam(5e-3), wrong)
    return Training(model, **data.parts(), epochs=5)


@fault(
    "recurrent",
    expect("vanishing_gradient", "lstm", "lstm_cell"),
    expect("saturated", "lstm", "lstm_cell"),
    expect("layer_not_learning", "lstm", "lstm_cell"),
)
def gates_start_shut(broken: bool) -> Training:
    """The bias of all gates of an LSTM starts at -12: nothing gets in and nothing gets out."""
    data = waves(seed=412)
    settings = {"bias_initializer": initializers.Constant(-12.0), "unit_forget_bias": False} if broken else {}
    stack = [layers.Input((12, 2)), layers.Dense(8, "tanh", name="project")]
    model = keras.Sequential(
        [*stack, layers.LSTM(16, name="lstm", **settings), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.SGD(1.0), SPARSE)
    return Training(model, **data.parts(), epochs=6)


@fault("attention", expect("output_loss_mismatch", "topic"), step=0)
def topic_head_sigmoid_twice(broken: bool) -> Training:
    """Of two heads one has a sigmoid and a loss that applies another."""
    data = tokens(seed=413)

    def both(y):
        return {"mood": y, "topic": y.astype("float32")[:, None]}

    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, name="embedding")(words)
    x = layers.Add(name="add")([x, layers.MultiHeadAttention(2, 8, name="attn")(x, x)])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    last = "sigmoid" if broken else None
    outputs = {
        "topic": layers.Dense(1, last, name="topic")(x),
        "mood": layers.Dense(2, "softmax", name="mood")(x),
    }
    model = keras.Model(words, outputs)
    model.compile(
        optimizers.Adam(5e-3), {"mood": SPARSE, "topic": keras.losses.BinaryCrossentropy(from_logits=True)}
    )
    held = (data.validation[0], both(data.validation[1]))
    return Training(model, data.x, both(data.y), held, epochs=5)
