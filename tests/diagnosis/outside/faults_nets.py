"""Faults of nets for pictures, sequences and words: convolutions, norms, recurrences, attention, half precision."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import initializers, layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.models import LOGITS, SPARSE, Call, OwnAttention
from diagnosis.outside.data import (
    beats,
    commands,
    displays,
    machines,
    needles,
    parity_first,
    river,
    textures,
    topics,
)  # fmt: skip
from diagnosis.outside.healthy_nets import Places


def pictures(*behind: Any, **conv: Any) -> Any:
    """Two convolutions on displays, what is put behind them, and ten outputs."""
    return keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Conv2D(16, 3, activation="relu", padding="same", name="conv1", **conv),
            layers.MaxPooling2D(name="pool1"),
            layers.Conv2D(24, 3, activation="relu", padding="same", name="conv2", **conv),
            layers.Flatten(name="flat"),
            *behind,
            layers.Dense(10, activation="softmax", name="digit"),
        ]
    )


class Bump(keras.callbacks.Callback):
    """Multiplies the learning rate at one step and sets it back after a few."""

    def __init__(self, at: int, factor: float, steps: int = 2) -> None:
        super().__init__()
        self.at, self.factor, self.steps, self.step = at, factor, steps, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        if self.step == self.at:
            optimizer.learning_rate = float(optimizer.learning_rate) * self.factor
        if self.step == self.at + self.steps:
            optimizer.learning_rate = float(optimizer.learning_rate) / self.factor
        self.step += 1


@fault("conv", expect("vanishing_gradient", *(f"c{i}" for i in range(1, 9))))
def eight_sigmoid_convolutions(broken: bool) -> Training:
    kind = "sigmoid" if broken else "relu"
    start = "glorot_uniform" if broken else "he_uniform"
    stack = [
        layers.Conv2D(12, 3, padding="same", activation=kind, kernel_initializer=start, name=f"c{i}")
        for i in range(1, 9)
    ]
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            *stack[:2],
            layers.AveragePooling2D(2, name="pool"),
            *stack[2:],
            layers.GlobalAveragePooling2D(name="mean"),
            layers.Dense(4, "softmax", name="direction"),
        ]
    )
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **textures(300, seed=1050).parts(), epochs=8, batch_size=20)


@fault(
    "conv",
    expect("dead_relu", "conv1", "conv2", "fc"),
    expect("updates_too_large"),
    step=60,
    within=12,
)
def rate_jumps_at_step_60(broken: bool) -> Training:
    """Somebody's scheduler multiplies the rate by 300 for two steps; the ReLUs do not come back."""
    model = pictures(layers.Dense(48, "relu", name="fc"))
    model.compile(optimizers.SGD(0.05, momentum=0.9), SPARSE, metrics=["accuracy"])
    data = displays(640, seed=1051)
    bump = [Bump(60, 300.0 if broken else 1.0)]
    return Training(model, **data.parts(), epochs=8, batch_size=32, callbacks=bump)


@fault("conv", expect("dead_relu", "conv2"), expect("layer_not_learning", "conv1", "conv2"))
def threshold_above_everything(broken: bool) -> Training:
    """A bias of -8 from an old checkpoint in a convolution."""
    model = pictures()
    if broken:
        bias = model.get_layer("conv2").bias
        bias.assign(np.full(bias.shape, -8.0))
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **displays(seed=1052).parts(), epochs=6, batch_size=25)


@fault("conv", expect("input_not_normalised"), step=0)
def bytes_of_a_camera(broken: bool) -> Training:
    scale = 255.0 if broken else 1.0
    data = displays(seed=1053).map_x(lambda x: (x * scale).astype("float32"))
    model = pictures(layers.Dense(48, "relu", name="fc"))
    model.compile(optimizers.SGD(0.02, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault("conv", expect("updates_too_large"), expect("loss_diverging"), expect("optimizer_misconfigured"))
def adam_at_a_half(broken: bool) -> Training:
    model = pictures(layers.Dense(48, "relu", name="fc"))
    model.compile(optimizers.Adam(0.5 if broken else 2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **displays(640, seed=1054).parts(), epochs=6, batch_size=32)


@fault("conv", expect("overfitting"))
def fifty_pictures_for_forty_epochs(broken: bool) -> Training:
    data = textures(50 if broken else 400, seed=1055)
    rng = np.random.default_rng(3)
    data = data.map_x(lambda x: (x + 1.2 * rng.normal(size=x.shape)).astype("float32"))
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(24, 3, activation="relu", name="conv1"),
            layers.Flatten(name="flat"),
            layers.Dense(64, "relu", name="fc"),
            layers.Dense(4, "softmax", name="direction"),
        ]
    )
    model.compile(optimizers.Adam(1e-3), SPARSE, metrics=["accuracy"])
    epochs = 40 if broken else 4
    return Training(model, **data.parts(), epochs=epochs, batch_size=25, validates=True)


def with_norms(momentum: float = 0.9, axis: int = -1) -> Any:
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, strides=2, padding="same", name="conv1"),
            layers.BatchNormalization(momentum=momentum, axis=axis, name="bn1"),
            layers.ReLU(name="relu1"),
            layers.Conv2D(24, 3, strides=2, padding="same", name="conv2"),
            layers.BatchNormalization(momentum=momentum, axis=axis, name="bn2"),
            layers.ReLU(name="relu2"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(4, "softmax", name="direction"),
        ]
    )


@fault("conv", expect("batchnorm", "bn1", "bn2"))
def averages_that_never_arrive(broken: bool) -> Training:
    """A momentum of 0.9999 in a run of a hundred steps: validation sees the first averages."""
    model = with_norms(0.9999 if broken else 0.9)
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **textures(seed=1056).parts(), epochs=8, batch_size=24, validates=True)


@fault("dense", expect("batchnorm", "bn1", "bn2"))
def norms_of_two_rows(broken: bool) -> Training:
    """Batches of two: after a norm each unit is +1 or -1."""
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(32, name="fc1"),
            layers.BatchNormalization(name="bn1"),
            layers.ReLU(name="relu1"),
            layers.Dense(32, name="fc2"),
            layers.BatchNormalization(name="bn2"),
            layers.ReLU(name="relu2"),
            layers.Dense(4, "softmax", name="state"),
        ]
    )
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    data = machines(360, seed=1057)
    return Training(model, **data.parts(), epochs=2 if broken else 12, batch_size=2 if broken else 24)


@fault(
    "conv",
    expect("precision_underflow"),
    expect("precision_underflow", "conv1", "conv2", "fc", "digit"),
    expect("vanishing_gradient", "conv1", "conv2"),
    expect("layer_not_learning", "conv1", "conv2", "fc", "digit"),
)
def tiny_loss_in_half_precision(broken: bool) -> Training:
    """The whole net is float16 and the loss is multiplied by 1e-5: gradients round to zero."""
    keep = keras.config.floatx()
    keras.config.set_floatx("float16" if broken else "float32")
    try:
        model = pictures(layers.Dense(48, "relu", name="fc"))
    finally:
        keras.config.set_floatx(keep)
    model.compile(optimizers.SGD(2e3, momentum=0.9), SPARSE, loss_weights=[1e-5])
    return Training(model, **displays(seed=1058).parts(), epochs=6, batch_size=32)


@fault("conv", expect("constant_or_duplicate_features"), step=0)
def alpha_channel_and_a_copy(broken: bool) -> Training:
    """Pictures were read with an alpha channel that is always one, and one colour was stored twice."""
    data = textures(seed=1059)
    rng = np.random.default_rng(4)

    def more(x: Any) -> Any:
        alpha, copy = np.ones((*x.shape[:-1], 1)), x[..., :1]
        other = rng.normal(size=(*x.shape[:-1], 2))
        return np.concatenate([x, *((alpha, copy) if broken else (other,))], -1).astype("float32")

    model = keras.Sequential(
        [
            keras.Input((16, 16, 5)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv1"),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv2"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(4, "softmax", name="direction"),
        ]
    )
    model.compile(optimizers.Adam(4e-3), SPARSE)
    return Training(model, **data.map_x(more).parts(), epochs=6, batch_size=24)


@fault("conv", expect("odd_batch"), expect("loss_spike"), expect("input_not_normalised"), step=45, within=2)
def one_batch_was_not_rescaled(broken: bool) -> Training:
    data = displays(1600, seed=1060)
    if broken:
        data.x[45 * 20 : 46 * 20] *= 255
    model = pictures()
    model.compile(optimizers.Adam(2e-3), SPARSE)
    return Training(model, **data.parts(), epochs=1, batch_size=20, shuffle=False)


@fault("conv", expect("output_loss_mismatch", "digit"), step=0)
def relu_before_the_cross_entropy(broken: bool) -> Training:
    """The logits pass a ReLU that was meant for hidden layers."""
    model = keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv"),
            layers.Flatten(name="flat"),
            layers.Dense(10, activation="relu" if broken else None, name="digit"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **displays(seed=1061).parts(), epochs=6, batch_size=25)


@fault(
    "recurrent",
    expect("exploding_gradient", "rnn", "lift"),
    expect("bad_initial_loss"),
    expect("updates_too_large"),
)
def relu_recurrence_of_large_weights(broken: bool) -> Training:
    start = initializers.RandomNormal(stddev=0.5) if broken else "orthogonal"
    model = keras.Sequential(
        [
            keras.Input((20, 1)),
            layers.Dense(8, name="lift"),
            layers.SimpleRNN(24, activation="relu", recurrent_initializer=start, name="rnn"),
            layers.Dense(1, name="level"),
        ]
    )
    model.compile(optimizers.Adam(2e-3), "mse")
    return Training(model, **river(seed=1062).parts(), epochs=6, batch_size=32)


@fault("recurrent", expect("vanishing_gradient", "lift", "rnn1", "rnn2", "rnn3"))
def first_value_of_a_long_sequence(broken: bool) -> Training:
    """The class stands in the first of 30 values, behind three recurrences of sigmoids."""
    kind = "sigmoid" if broken else "tanh"
    rnn = layers.SimpleRNN if broken else layers.GRU
    model = keras.Sequential(
        [
            keras.Input((30, 1)),
            layers.Dense(16, name="lift"),
            rnn(16, activation=kind, return_sequences=True, go_backwards=not broken, name="rnn1"),
            rnn(16, activation=kind, return_sequences=True, name="rnn2"),
            rnn(16, activation=kind, name="rnn3"),
            layers.Dense(1, "sigmoid", name="sign"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **parity_first(seed=1063).parts(), epochs=6, batch_size=24)


@fault("recurrent", expect("saturated", "squash"))
def embedding_far_too_wide(broken: bool) -> Training:
    """Word vectors of size 40 enter a tanh."""
    spread = 40.0 if broken else 0.3
    model = keras.Sequential(
        [
            keras.Input((18,), dtype="int32"),
            layers.Embedding(
                60, 16, embeddings_initializer=initializers.RandomUniform(-spread, spread), name="words"
            ),
            layers.Dense(16, "tanh", name="squash"),
            layers.GRU(16, name="gru"),
            layers.Dense(4, "softmax", name="topic"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **topics(seed=1064).parts(), epochs=5, batch_size=24)


@fault("recurrent", expect("input_not_normalised"))
def level_in_raw_millimetres(broken: bool) -> Training:
    data = river(seed=1065, mean=2400.0 if broken else 0.0, spread=300.0 if broken else 1.0)
    data = data.map_y(lambda y: ((y - data.y.mean()) / data.y.std()).astype("float32"))
    model = keras.Sequential(
        [keras.Input((20, 1)), layers.LSTM(24, name="lstm"), layers.Dense(1, name="level")]
    )
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("recurrent", expect("dropout_too_high", "lstm"), step=0)
def lstm_that_forgets_its_input(broken: bool) -> Training:
    """`dropout=0.95` inside the LSTM."""
    model = keras.Sequential(
        [
            keras.Input((32, 2)),
            layers.LSTM(24, dropout=0.95 if broken else 0.05, seed=1, name="lstm"),
            layers.Dense(3, "softmax", name="shape"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **beats(seed=1066).parts(), epochs=6, batch_size=24)


@fault("recurrent", expect("unshuffled"))
def beats_class_after_class(broken: bool) -> Training:
    data = beats(seed=1067)
    order = np.argsort(data.y, kind="stable") if broken else np.arange(len(data.y))
    data.x, data.y = data.x[order], data.y[order]
    model = keras.Sequential(
        [keras.Input((32, 2)), layers.GRU(24, name="gru"), layers.Dense(3, "softmax", name="shape")]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5, batch_size=20, shuffle=False)


@fault(
    "recurrent",
    expect("loss_spike"),
    expect("updates_too_large"),
    expect("loss_diverging"),
    step=80,
    within=6,
)
def rate_jumps_in_a_recurrence(broken: bool) -> Training:
    """A restart of the schedule multiplies the rate by 200 at step 80, for three steps."""
    model = keras.Sequential(
        [keras.Input((20, 1)), layers.GRU(24, name="gru"), layers.Dense(1, name="level")]
    )
    model.compile(optimizers.Adam(3e-3), "mse")
    bump = [Bump(80, 200.0 if broken else 1.0, 3)]
    return Training(model, **river(seed=1068).parts(), epochs=8, batch_size=25, callbacks=bump)


@fault("attention", expect("wrong_axis", "weights", "pooling"), step=0)
def attention_of_one_place_each(broken: bool) -> Training:
    """The softmax of the scores runs over the last axis, which has one entry: every weight is one."""
    inputs = keras.Input((16, 6))
    keys = layers.Dense(24, "tanh", name="keys")(inputs)
    score = layers.Dense(1, name="score")(keys)
    weights = layers.Softmax(axis=-1 if broken else 1, name="weights")(score)
    x = ops.sum(weights * layers.Dense(24, name="values")(inputs), 1)
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="kind")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **needles(seed=1069).parts(), epochs=8, batch_size=32)


@fault(
    "custom", expect("wrong_axis", "digit", "prob"), expect("output_loss_mismatch", "digit", "prob"), step=0
)
def softmax_down_the_batch(broken: bool) -> Training:
    model = keras.Sequential(
        [
            keras.Input((12, 10, 1)),
            layers.Flatten(name="flat"),
            layers.Dense(48, "relu", name="fc"),
            layers.Dense(10, name="digit"),
            layers.Activation(lambda x: ops.softmax(x, axis=0 if broken else -1), name="prob"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **displays(seed=1070).parts(), epochs=6, batch_size=25)


@fault("attention", expect("nonfinite", "attention"), step=0, within=2)
def row_that_may_look_nowhere(broken: bool) -> Training:
    """Empty lines are masked everywhere, with minus infinity."""
    data = topics(seed=1071)
    data.x[::40] = 0
    words = keras.Input((18,), dtype="int32")
    x = layers.Embedding(60, 16, name="words")(words)
    mask = Call(lambda w: ops.cast(w > 0, "float32"), name="mask")(words)
    y = OwnAttention(16, masked=-np.inf if broken else -1e9, name="attention")([x, mask])
    x = layers.GlobalAveragePooling1D(name="pool")(layers.Add(name="sum")([x, y]))
    model = keras.Model(words, layers.Dense(4, "softmax", name="topic")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **data.parts(), epochs=4, batch_size=24)


@fault("attention", expect("saturated", "attention", "weights"))
def temperature_turned_upside_down(broken: bool) -> Training:
    """The scores are multiplied by 200 instead of divided: each weight is 0 or 1."""
    inputs = keras.Input((16, 6))
    q = layers.Dense(24, name="query")(layers.GlobalAveragePooling1D(name="mean")(inputs))
    k = layers.Dense(24, name="key")(inputs)
    factor = 200.0 if broken else 0.2
    weights = Call(lambda qk: factor * ops.sum(qk[0][:, None] * qk[1], -1), name="scores")([q, k])
    weights = layers.Softmax(name="weights")(weights)
    x = ops.sum(weights[..., None] * layers.Dense(24, name="values")(inputs), 1)
    model = keras.Model(
        inputs, layers.Dense(3, "softmax", name="kind")(layers.Dense(24, "relu", name="fc")(x))
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **needles(seed=1072).parts(), epochs=8, batch_size=32)


def lookup(blocks: int) -> Any:
    words = keras.Input((14,), dtype="int32")
    x = Places(name="places")(layers.Embedding(24, 32, name="words")(words))
    for i in range(1, blocks + 1):
        y = layers.LayerNormalization(name=f"ln{i}")(x)
        x = x + layers.MultiHeadAttention(4, 8, name=f"mha{i}")(y, y)
        x = x + layers.Dense(32, name=f"ff{i}b")(layers.Dense(64, "relu", name=f"ff{i}a")(x))
    x = layers.GlobalMaxPooling1D(name="pool")(x)
    return keras.Model(words, layers.Dense(3, "softmax", name="class")(x))


@fault("attention", expect("updates_too_large"), expect("loss_diverging"), expect("optimizer_misconfigured"))
def transformer_at_a_twentieth(broken: bool) -> Training:
    model = lookup(2)
    model.compile(optimizers.Adam(0.2 if broken else 2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **commands(seed=1073).parts(), epochs=6, batch_size=25)


@fault("attention", expect("overfitting"))
def hundred_lines_by_heart(broken: bool) -> Training:
    """A hundred lines, a third of them with a wrong label, and fifty epochs."""
    data = commands(100 if broken else 800, seed=1074)
    rng = np.random.default_rng(6)
    wrong = rng.random(len(data.y)) < (0.33 if broken else 0.0)
    data.y[wrong] = rng.integers(0, 3, wrong.sum())
    model = lookup(1)
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    epochs = 50 if broken else 8
    return Training(model, **data.parts(), epochs=epochs, batch_size=25, validates=True)


@fault(
    "attention", expect("layer_not_learning", "words", "mha1", "ff1a", "ff1b", "places", "ln1"), note=True
)  # fmt: skip
def encoder_stays_frozen(broken: bool) -> Training:
    """`trainable = False` is left over on a fresh transformer; only the head learns."""
    model = lookup(1)
    for layer in model.layers:
        layer.trainable = not broken or layer.name == "class"
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **commands(seed=1075).parts(), epochs=8, batch_size=25)


@fault(
    "attention",
    expect("clipped_gradient"),
    expect("updates_too_small"),
    expect("optimizer_misconfigured"),
    step=0,
)
def values_clipped_at_a_ten_millionth(broken: bool) -> Training:
    model = lookup(1)
    model.compile(optimizers.SGD(0.1, momentum=0.9, clipvalue=1e-7 if broken else 0.5), SPARSE)
    return Training(model, **commands(seed=1076).parts(), epochs=8, batch_size=25)


@fault("attention", expect("class_collapse"), expect("label_problem"))
def weights_for_one_class_only(broken: bool) -> Training:
    """The weights of the samples are zero for all but one class."""
    data = topics(seed=1077)
    weight = np.where(data.y == 1, 1.0, 0.0 if broken else 1.0).astype("float32")
    words = keras.Input((18,), dtype="int32")
    x = layers.Embedding(60, 16, name="words")(words)
    x = x + layers.MultiHeadAttention(2, 8, name="attention")(x, x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(words, layers.Dense(4, "softmax", name="topic")(x))
    model.compile(optimizers.Adam(4e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=24, sample_weight=weight)
