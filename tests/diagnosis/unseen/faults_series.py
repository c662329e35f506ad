"""Faults in recordings and in text: channels, order, time and words."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import initializers, layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import parted
from diagnosis.models import LOGITS, SPARSE, Call
from diagnosis.unseen.data import first_of_two, recordings, sentences, successors


@fault("recurrent", expect("constant_or_duplicate_features"))
def channels_merged_twice(broken: bool) -> Training:
    """A join put the first sensor in the place of the third as well, and the fourth was never switched on."""
    data = recordings(seed=9201)

    def joined(x: Any) -> Any:
        return np.concatenate([x[..., :2], x[..., :1], np.zeros_like(x[..., :1])], -1) if broken else x

    model = keras.Sequential(
        [
            layers.Input((24, 4)),
            layers.GRU(20, name="gru"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(6e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.map_x(joined).parts(), epochs=8, batch_size=20)


@fault("conv", expect("unshuffled"))
def patients_one_after_another(broken: bool) -> Training:
    """Each batch holds the beats of a single patient, so it has a single label, and nothing shuffles them."""
    rng = np.random.default_rng(9202)
    ill = rng.permutation(np.arange(36) % 2)
    time = np.linspace(0, 6.28, 32)[None, :, None]
    x, y = [], []
    for patient in ill:
        phase = rng.normal(size=(16, 1, 1)) * 0.3 + rng.uniform(0, 6.28)
        beat = np.sin(2 * time + phase) + (0.6 * patient) * np.sin(5 * time + 2 * phase)
        x.append(beat * rng.uniform(0.8, 1.2) + rng.normal(size=(16, 32, 1)) * 0.4)
        y.append(np.full(16, patient))
    rows = np.concatenate(x).astype("float32")
    data = parted(rows / rows.std(), np.concatenate(y).astype("int32"), 480)
    model = keras.Sequential(
        [
            layers.Input((32, 1)),
            layers.Conv1D(12, 5, activation="relu", name="conv1"),
            layers.Conv1D(16, 5, strides=2, activation="relu", name="conv2"),
            layers.GlobalAveragePooling1D(name="pool"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(6e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, shuffle=not broken)


@fault("recurrent", expect("dropout_too_high", "lstm"), expect("dropout_too_high"))
def dropout_inside_the_lstm(broken: bool) -> Training:
    """The shares to keep, 0.9 of the inputs and of the states, are given to the LSTM as the shares to drop."""
    drop = 0.9 if broken else 0.1
    model = keras.Sequential(
        [
            layers.Input((24, 4)),
            layers.LSTM(24, dropout=drop, recurrent_dropout=drop, name="lstm"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(8e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **recordings(seed=9203).parts(), epochs=10, batch_size=20)


@fault(
    "conv",
    expect("wrong_axis", "peak"),
    expect("loss_not_decreasing"),
    expect("class_collapse", "head"),
)
def time_major_by_reshape(broken: bool) -> Training:
    """To bring time to the front the batch is reshaped, not transposed, so the moments of different rows are mixed."""

    def peak(x: Any) -> Any:
        steps, width = x.shape[1:]
        first = ops.reshape(x, (steps, -1, width)) if broken else ops.transpose(x, (1, 0, 2))
        return ops.max(first, axis=0)

    model = keras.Sequential(
        [
            layers.Input((24, 4)),
            layers.Conv1D(16, 5, padding="same", activation="relu", name="conv1"),
            layers.Conv1D(16, 5, padding="same", activation="relu", name="conv2"),
            Call(peak, name="peak"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(4e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **recordings(seed=9204).parts(), epochs=8, batch_size=20)


@fault(
    "recurrent",
    expect("constant_or_duplicate_features"),
    expect("loss_not_decreasing"),
    expect("class_collapse", "head"),
)
def almost_every_word_unknown(broken: bool) -> Training:
    """The vocabulary was built from words in capitals: all but the numerals, words 56 to 59, become the unknown word 1."""
    data = sentences(seed=9205)
    data = data.map_x(lambda x: np.where(x >= 56, x, 1).astype("int32") if broken else x)
    model = keras.Sequential(
        [
            layers.Input((14,), dtype="int32"),
            layers.Embedding(60, 16, name="embedding"),
            layers.Bidirectional(layers.GRU(12, name="gru"), name="both"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(6e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=20)


class Positions(layers.Layer):
    """Adds a learned vector to each place of a sentence."""

    def build(self, shape: Any) -> None:
        self.places = self.add_weight(shape[1:], "random_normal", name="places")

    def call(self, x: Any) -> Any:
        return x + self.places


@fault("attention", expect("loss_not_decreasing"), expect("class_collapse", "head"))
def order_without_positions(broken: bool) -> Training:
    """The label tells which of two words comes first, and the transformer gets no positions, so it cannot know."""
    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(20, 24, name="embedding")(words)
    x = x if broken else Positions(name="positions")(x)
    for i in (1, 2):
        inner = layers.LayerNormalization(name=f"norm{i}a")(x)
        attended = layers.MultiHeadAttention(2, 12, name=f"attn{i}")(inner, inner)
        x = layers.Add(name=f"add{i}a")([x, attended])
        inner = layers.LayerNormalization(name=f"norm{i}b")(x)
        wide = layers.Dense(48, "gelu", name=f"up{i}")(inner)
        x = layers.Add(name=f"add{i}b")([x, layers.Dense(24, name=f"down{i}")(wide)])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **first_of_two(seed=9206).parts(), epochs=8, batch_size=32)


class TiedWords(layers.Layer):
    """An embedding whose vectors also are the weights of the output."""

    def __init__(self, words: int, width: int, spread: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.shape, self.spread = (words, width), spread

    def build(self, shape: Any) -> None:
        self.vectors = self.add_weight(
            self.shape, initializers.RandomNormal(stddev=self.spread), name="vectors"
        )

    def call(self, x: Any, back: bool = False) -> Any:
        if back:
            return ops.matmul(x, ops.transpose(self.vectors))
        return ops.take(self.vectors, x, axis=0)


@fault("recurrent", expect("bad_initial_loss", "tied"), expect("bad_initial_loss"), step=0, within=5)
def tied_head_of_a_wide_embedding(broken: bool) -> Training:
    """Embedding and head share vectors that start with a spread of 1, so the first scores of the next word are ten times too wide."""
    tied = TiedWords(40, 64, 1.0 if broken else 0.05, name="tied")
    words = layers.Input((12,), dtype="int32")
    x = layers.GRU(64, return_sequences=True, name="gru")(tied(words))
    x = layers.LayerNormalization(name="norm")(x)
    model = keras.Model(words, tied(x, back=True))
    model.compile(optimizers.Adam(4e-3), LOGITS)
    return Training(model, **successors(seed=9207).parts(), epochs=8, batch_size=20)


@fault(
    "recurrent",
    expect("clipped_gradient"),
    expect("updates_too_small"),
    expect("optimizer_misconfigured"),
    expect("loss_not_decreasing"),
)
def clip_of_a_thousandth_on_tokens(broken: bool) -> Training:
    """Every gradient is cut to a norm of 0.001. The twin's limit is 1, which it hardly ever meets."""
    model = keras.Sequential(
        [
            layers.Input((14,), dtype="int32"),
            layers.Embedding(
                60, 24, embeddings_initializer=initializers.RandomNormal(stddev=0.5), name="embedding"
            ),
            layers.Conv1D(24, 3, activation="relu", name="conv"),
            layers.GlobalMaxPooling1D(name="pool"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(
        optimizers.SGD(0.1, 0.9, global_clipnorm=1e-3 if broken else 1.0), SPARSE, metrics=["accuracy"]
    )
    return Training(model, **sentences(seed=9208).parts(), epochs=8, batch_size=20)


@fault("recurrent", expect("saturated", "rnn"), expect("exploding_gradient"))
def orthogonal_gain_of_ten(broken: bool) -> Training:
    """The recurrent weights start as a rotation, ten times too large: the states are at the ends of the tanh at once."""
    start = initializers.Orthogonal(gain=10.0 if broken else 1.0)
    model = keras.Sequential(
        [
            layers.Input((24, 4)),
            layers.SimpleRNN(24, recurrent_initializer=start, name="rnn"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(6e-3, clipnorm=5.0), SPARSE, metrics=["accuracy"])
    return Training(model, **recordings(seed=9209).parts(), epochs=16, batch_size=20)
