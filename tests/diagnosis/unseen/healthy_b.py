"""Healthy trainings on sequences, words and pairs: recurrence, attention, masks, gates, experts, factors."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, losses, ops, optimizers, regularizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.data import Data, parted, scaled
from diagnosis.models import LOGITS, SPARSE
from diagnosis.unseen.toys import HELD, crops, lines_of_text, sessions, species, spectra, tagged


@healthy("conv")
def peaks_by_cosine_of_a_code() -> Training:
    """Convolutions over a signal; the classes are told by the angle between a code and a vector each, times 10."""
    inputs = keras.Input((48, 1))
    x = inputs
    for i, width in enumerate((16, 24, 32)):
        x = layers.Conv1D(width, 5, strides=2, padding="same", use_bias=False, name=f"conv{i}")(x)
        x = layers.BatchNormalization(momentum=0.95, name=f"norm{i}")(x)
        x = layers.Activation("relu", name=f"relu{i}")(x)
    x = layers.Flatten(name="flat")(x)
    x = layers.UnitNormalization(name="unit")(layers.Dense(16, name="code")(x))
    x = layers.Dense(4, use_bias=False, kernel_constraint=keras.constraints.UnitNorm(), name="angle")(x)
    model = keras.Model(inputs, layers.Rescaling(10.0, name="sharper")(x))
    model.compile(optimizers.Adam(2e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **spectra(seed=1201).parts(), epochs=10, batch_size=24, validates=True)


@healthy("recurrent")
def tags_by_a_bidirectional_gru() -> Training:
    model = keras.Sequential(
        [
            keras.Input((14,), dtype="int32"),
            layers.Embedding(24, 12, name="words"),
            layers.Bidirectional(layers.GRU(16, return_sequences=True), name="both_ways"),
            layers.Dense(4, "softmax", name="tag"),
        ]
    )
    model.compile(optimizers.Adam(1e-2, clipnorm=1.0), SPARSE, metrics=["accuracy"])
    return Training(model, **tagged(seed=1202).parts(), epochs=8, batch_size=16)


@healthy("recurrent")
def sessions_that_are_half_padding() -> Training:
    """The mask of the embedding hides more than half of the places from the LSTM."""
    model = keras.Sequential(
        [
            keras.Input((20,), dtype="int32"),
            layers.Embedding(30, 16, mask_zero=True, name="pages"),
            layers.LSTM(24, name="memory"),
            layers.Dense(1, "sigmoid", name="buys"),
        ]
    )
    model.compile(optimizers.RMSprop(5e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **sessions(960, seed=1203).parts(), epochs=15, batch_size=24, validates=True)


@healthy("attention")
def next_letter_in_bfloat16() -> Training:
    """Two causal blocks with RMS norms and gated dense layers, in half precision; the logits are float32."""
    half = {"dtype": "mixed_bfloat16"}
    data = lines_of_text(seed=1204)
    inputs = keras.Input((24,), dtype="int32")
    places = layers.Embedding(24, 32, name="places", **half)(ops.arange(24)[None])
    x = layers.Embedding(int(data.x.max()) + 1, 32, name="letters", **half)(inputs) + places
    for i in range(2):
        y = layers.RMSNormalization(name=f"norm{i}a", **half)(x)
        x = x + layers.MultiHeadAttention(2, 16, name=f"attn{i}", **half)(y, y, use_causal_mask=True)
        y = layers.RMSNormalization(name=f"norm{i}b", **half)(x)
        gate = layers.Dense(48, "silu", use_bias=False, name=f"gate{i}", **half)(y)
        y = gate * layers.Dense(48, use_bias=False, name=f"up{i}", **half)(y)
        x = x + layers.Dense(32, use_bias=False, name=f"down{i}", **half)(y)
    x = layers.RMSNormalization(name="norm", **half)(x)
    model = keras.Model(inputs, layers.Dense(int(data.x.max()) + 1, name="logits", dtype="float32")(x))
    rate = schedules.CosineDecay(0.0, 220, warmup_target=5e-3, warmup_steps=30)
    model.compile(optimizers.AdamW(rate, weight_decay=0.01, beta_2=0.95, clipnorm=1.0), LOGITS)
    return Training(model, **data.parts(), epochs=10, batch_size=16)


@healthy("attention")
def value_of_the_asked_key() -> Training:
    """One place of eight holds the answer: the attention becomes sharp, and is meant to."""
    rng = np.random.default_rng(1205)
    n = 960 + HELD
    keys = rng.permuted(np.tile(np.arange(12), (n, 1)), axis=1)[:, :8]
    values, asked = rng.integers(0, 4, (n, 8)), rng.integers(0, 8, n)
    memory = np.concatenate([np.eye(12)[keys], np.eye(4)[values]], axis=-1).astype("float32")
    question = np.eye(12, dtype="float32")[keys[np.arange(n), asked]][:, None]
    answer = values[np.arange(n), asked].astype("int32")
    told, wanted = keras.Input((8, 16), name="told"), keras.Input((1, 12), name="wanted")
    scores = layers.Dot(2, name="scores")(
        [layers.Dense(16, name="query")(wanted), layers.Dense(16, name="key")(told)]
    )
    where = layers.Softmax(name="where")(scores)
    found = layers.Dot((2, 1), name="found")([where, layers.Dense(16, name="value")(told)])
    found = layers.Flatten(name="flat")(found)
    model = keras.Model([told, wanted], layers.Dense(4, "softmax", name="answer")(found))
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    held = ([memory[960:], question[960:]], answer[960:])
    return Training(model, [memory[:960], question[:960]], answer[:960], held, epochs=10, batch_size=32)


@healthy("custom")
def highway_of_sigmoid_gates() -> Training:
    """Ten layers that carry their input past themselves; the gates start at -2, mostly shut."""
    inputs = keras.Input((10,))
    x = layers.Dense(24, "tanh", name="stem")(inputs)
    shut = keras.initializers.Constant(-2.0)
    for i in range(10):
        gate = layers.Dense(24, "sigmoid", bias_initializer=shut, name=f"gate{i}")(x)
        new = layers.Dense(24, "tanh", name=f"new{i}")(x)
        x = gate * new + (1 - gate) * x
    model = keras.Model(inputs, layers.Dense(4, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **species(seed=1206).parts(), epochs=10, batch_size=20)


@healthy("conv")
def mixer_over_a_spectrum() -> Training:
    """Eight pieces of six values; dense layers over the pieces and over the channels in turn."""
    inputs = keras.Input((48, 1))
    x = layers.Dense(24, name="piece")(layers.Reshape((8, 6), name="pieces")(inputs))
    for i in range(3):
        y = layers.Permute((2, 1))(layers.LayerNormalization(name=f"norm{i}a")(x))
        y = layers.Dense(8, name=f"places{i}b")(layers.Dense(24, "gelu", name=f"places{i}a")(y))
        x = layers.Add()([x, layers.Permute((2, 1))(y)])
        y = layers.LayerNormalization(name=f"norm{i}b")(x)
        y = layers.Dense(24, name=f"channels{i}b")(layers.Dense(48, "gelu", name=f"channels{i}a")(y))
        x = layers.Add()([x, layers.Dropout(0.1)(y)])
    x = layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(inputs, layers.Dense(4, name="head")(x))
    model.compile(optimizers.AdamW(3e-3, weight_decay=1e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **spectra(640, seed=1207).parts(), epochs=15, batch_size=32)


@healthy("conv")
def unet_over_a_spectrum() -> Training:
    """Where are the peaks? Two steps down and two up, joined across; one place in eight is a peak."""
    data = spectra(seed=1208)
    smooth = np.array([0.25, 0.5, 0.25])

    def high(x: Any) -> Any:
        return np.stack([np.convolve(row[:, 0], smooth, "same") > 0.9 for row in x])[..., None]

    data = Data(data.x, high(data.x).astype("float32"), (data.validation[0], high(data.validation[0]) * 1.0))

    def block(x: Any, width: int, name: str) -> Any:
        x = layers.Conv1D(width, 3, padding="same", name=name)(x)
        return layers.Activation("silu", name=f"{name}_silu")(
            layers.GroupNormalization(4, name=f"{name}_norm")(x)
        )

    inputs = keras.Input((48, 1))
    fine = block(inputs, 8, "fine")
    middle = block(layers.MaxPooling1D(name="down1")(fine), 16, "middle")
    x = block(layers.MaxPooling1D(name="down2")(middle), 24, "deep")
    x = layers.Concatenate(name="across1")([layers.UpSampling1D(name="up1")(x), middle])
    x = layers.UpSampling1D(name="up2")(block(x, 16, "wider"))
    x = block(layers.Concatenate(name="across2")([x, fine]), 8, "last")
    model = keras.Model(inputs, layers.Conv1D(1, 1, activation="sigmoid", name="peak")(x))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=20)


@healthy("dense")
def bags_of_words_by_plain_descent() -> Training:
    """The mean of the vectors of the words; a rate of 2, as is usual for means of embeddings."""
    rng = np.random.default_rng(1209)
    more = 800 + HELD
    y = rng.integers(0, 3, more)
    own = rng.random((more, 15)) < 0.4
    x = np.where(own, 20 * y[:, None] + rng.integers(0, 20, (more, 15)), rng.integers(0, 100, (more, 15)))
    model = keras.Sequential(
        [
            keras.Input((15,), dtype="int32"),
            layers.Embedding(100, 16, name="words"),
            layers.GlobalAveragePooling1D(name="bag"),
            layers.Dense(3, "softmax", name="kind"),
        ]
    )
    model.compile(optimizers.SGD(2.0), SPARSE, metrics=["accuracy"])
    return Training(
        model, **parted(x.astype("int32"), y.astype("int32"), 800).parts(), epochs=12, batch_size=16
    )


@healthy("dense")
def taste_of_readers_by_factors() -> Training:
    """Matrix factorisation with biases and a penalty; most pairs of reader and book are never seen."""
    rng = np.random.default_rng(1210)
    readers, books = rng.normal(size=(60, 3)), rng.normal(size=(80, 3))
    who, what = rng.integers(0, 60, 2400 + 300), rng.integers(0, 80, 2400 + 300)
    y = (readers[who] * books[what]).sum(1) + 0.5 * books[what, 0] + 0.3 * rng.normal(size=2700)
    y = scaled(y[:, None])
    one, other = keras.Input((), dtype="int32", name="reader"), keras.Input((), dtype="int32", name="book")
    small = {"embeddings_regularizer": regularizers.L2(1e-5)}
    match = layers.Dot(1, name="match")(
        [
            layers.Embedding(60, 6, name="readers", **small)(one),
            layers.Embedding(80, 6, name="books", **small)(other),
        ]
    )
    liked = layers.Embedding(80, 1, name="liked", embeddings_initializer="zeros")(other)
    model = keras.Model([one, other], layers.Add(name="stars")([match, liked]))
    model.compile(optimizers.Adam(1e-2), "mse")
    who, what = who.astype("int32"), what.astype("int32")
    held = ([who[2400:], what[2400:]], y[2400:])
    return Training(model, [who[:2400], what[:2400]], y[:2400], held, epochs=10, batch_size=32)


class TopTwo(layers.Layer):
    """Four experts, of which the gate chooses two for each row; a small loss keeps all of them busy."""

    def __init__(self, width: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.gate = layers.Dense(4, name="gate")
        self.experts = [layers.Dense(width, "relu", name=f"expert{i}") for i in range(4)]

    def build(self, shape: Any) -> None:
        for part in (self.gate, *self.experts):
            part.build(shape)

    def call(self, x: Any) -> Any:
        logits = self.gate(x)
        second = ops.min(ops.top_k(logits, 2)[0], axis=-1, keepdims=True)
        chosen = ops.cast(logits >= second, logits.dtype)
        share = ops.softmax(logits + (chosen - 1) * 1e4)
        busy, likely = ops.mean(chosen, axis=0), ops.mean(ops.softmax(logits), axis=0)
        self.add_loss(0.01 * ops.sum(busy * likely) * 2)
        every = ops.stack([one(x) for one in self.experts], axis=1)
        return ops.sum(every * share[..., None], axis=1)

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], self.experts[0].units)


@healthy("custom")
def two_of_four_experts() -> Training:
    model = keras.Sequential(
        [keras.Input((10,)), TopTwo(24, name="experts"), layers.Dense(6, "softmax", name="head")]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **species(800, classes=6, seed=1211).parts(), epochs=12, batch_size=20)


@healthy("dense")
def three_questions_about_a_field() -> Training:
    """Yield, quality and class of a field from one body; the losses are weighed against each other."""
    data = crops(800, seed=1212)
    noise = np.random.default_rng(1).normal(size=(800 + HELD, 1)).astype("float32")
    x, y = np.concatenate([data.x, data.validation[0]]), np.concatenate([data.y, data.validation[1]])
    good = (y + 0.2 * noise > 0.3).astype("float32")
    kind = ((x[:, 0] > 0).astype("int32") + (x[:, 1] + x[:, 2] > 0)).astype("int32")
    inputs = keras.Input((8,))
    h = layers.Dense(48, "relu", name="body1")(inputs)
    h = layers.Dense(48, "relu", name="body2")(h)
    heads = {
        "amount": layers.Dense(1, name="amount")(h),
        "good": layers.Dense(1, "sigmoid", name="good")(h),
        "kind": layers.Dense(3, name="kind")(h),
    }
    model = keras.Model(inputs, heads)
    model.compile(
        optimizers.Adam(3e-3),
        {"amount": losses.Huber(), "good": "binary_crossentropy", "kind": LOGITS},
        loss_weights={"amount": 1.0, "good": 0.5, "kind": 0.3},
    )
    targets = {"amount": y, "good": good, "kind": kind}
    held = (x[800:], {name: one[800:] for name, one in targets.items()})
    return Training(
        model, x[:800], {name: one[:800] for name, one in targets.items()}, held, epochs=10, batch_size=25
    )
