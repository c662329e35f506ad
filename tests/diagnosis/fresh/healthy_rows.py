"""Healthy trainings on tables, ratings, text and series, short or long, with many optimizers and losses."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, losses, ops, optimizers, regularizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.fresh.data import (
    bicycles,
    clouds,
    genes,
    moons,
    ratings,
    reversals,
    series,
    shops,
    text,
    wines,
)  # fmt: skip
from diagnosis.models import LOGITS, SPARSE, Call


def dense(
    inputs: int, outputs: int, *widths: int, activation: str = "relu", last: Any = None, **settings: Any
) -> Any:
    stack = [layers.Dense(width, activation=activation, **settings) for width in widths]
    return keras.Sequential([keras.Input((inputs,)), *stack, layers.Dense(outputs, activation=last)])


@healthy("dense")
def moons_in_thirty_steps() -> Training:
    """Two epochs only: it has barely begun when it ends."""
    model = dense(2, 1, 16, 16, last="sigmoid")
    model.compile(optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **moons(480, seed=820).parts(), epochs=2, batch_size=32)


@healthy("dense")
def wines_with_half_dropped() -> Training:
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(64, "relu"),
            layers.Dropout(0.5, seed=1),
            layers.Dense(64, "relu"),
            layers.Dropout(0.5, seed=2),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile("adam", SPARSE, metrics=["accuracy"])
    return Training(model, **wines(seed=821).parts(), epochs=10, batch_size=32, validates=True)


@healthy("dense")
def normalised_inside_the_model() -> Training:
    """Raw units outside, a Normalization layer inside."""
    data = wines(scaled=False, seed=822)
    scale = layers.Normalization(name="scale")
    scale.adapt(data.x)
    model = keras.Sequential(
        [keras.Input((10,)), scale, layers.Dense(32, "relu", name="hidden"), layers.Dense(3, name="logits")]
    )
    model.compile(optimizers.Adam(5e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=16)


@healthy("dense")
def whole_batch_for_200_epochs() -> Training:
    """One step is one epoch."""
    data = moons(300, seed=823)
    model = dense(2, 1, 12, 12, activation="tanh", last="sigmoid")
    model.compile(optimizers.Adam(1e-2), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=200, batch_size=300)


@healthy("dense")
def rentals_in_tiny_units() -> Training:
    """Targets of 1e-4: the loss is 1e-8 and still falls."""
    model = dense(7, 1, 32, 32)
    model.compile(optimizers.Adam(1e-3), "mse")
    return Training(model, **bicycles(seed=824, spread=1e-3).parts(), epochs=8, batch_size=32)


@healthy("dense")
def rentals_in_hundreds() -> Training:
    """Targets around 200 as they are; Adam needs a while to get there and does."""
    model = dense(7, 1, 64, 64)
    model.compile(optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return Training(model, **bicycles(960, seed=825, mean=200, spread=60).parts(), epochs=8, batch_size=32)


@healthy("dense")
def adafactor_with_penalties() -> Training:
    model = dense(7, 1, 48, 48, activation="silu", kernel_regularizer=regularizers.L2(1e-4))
    model.compile(optimizers.Adafactor(1e-2), "mae")
    return Training(model, **bicycles(seed=826).parts(), epochs=8, batch_size=32)


@healthy("dense")
def muon_on_wines() -> Training:
    model = dense(10, 3, 48, 48, last="softmax")
    model.compile(optimizers.Muon(2e-3, adam_lr_ratio=1), SPARSE, metrics=["accuracy"])
    return Training(model, **wines(seed=827).parts(), epochs=8, batch_size=32)


@healthy("dense")
def a_third_of_the_labels_is_wrong() -> Training:
    """Noise sets the floor: the loss falls from 0.69 to 0.64 and stays there."""
    rng = np.random.default_rng(828)
    data = moons(960, seed=828).map_y(lambda y: np.abs(y - (rng.random(y.shape) < 0.33)).astype("float32"))
    model = dense(2, 1, 16, 16, last="sigmoid")
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@healthy("dense")
def focal_loss_on_rare_wine() -> Training:
    """One kind in twelve, which is how it grows; the focal loss takes care of it."""
    data = wines(960, seed=829, shares=(0.92, 0.08)).map_y(lambda y: y.astype("float32")[:, None])
    model = dense(10, 1, 32, 16, last="sigmoid")
    model.compile(optimizers.Adam(3e-3), losses.BinaryFocalCrossentropy(gamma=2.0), metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@healthy("dense")
def counts_with_many_zeros() -> Training:
    model = dense(40, 1, 32, last="exponential")
    model.compile(optimizers.Adam(2e-3), "poisson")
    return Training(model, **shops(seed=830).parts(), epochs=8, batch_size=32)


@healthy("conv")
def motif_in_one_hot_letters() -> Training:
    model = keras.Sequential(
        [
            keras.Input((30, 4)),
            layers.Conv1D(16, 6, activation="relu", name="motifs"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, activation="sigmoid", name="found"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **genes(seed=831).parts(), epochs=8, batch_size=16)


@healthy("custom")
def deep_sets() -> Training:
    model = keras.Sequential(
        [
            keras.Input((20, 2)),
            layers.Dense(24, "relu", name="phi1"),
            layers.Dense(24, "relu", name="phi2"),
            Call(lambda x: ops.sum(x, axis=1), name="sum"),
            layers.Dense(24, "relu", name="rho"),
            layers.Dense(3, "softmax", name="kind"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **clouds(seed=832).parts(), epochs=6, batch_size=16)


@healthy("custom")
def stars_for_films() -> Training:
    """Factors of users and films; most rows of the tables are touched seldom, some never."""
    users, films, stars = ratings(seed=833)
    user, film = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    small = {"embeddings_initializer": keras.initializers.RandomNormal(0, 0.1)}
    a, b = (
        layers.Embedding(120, 8, name="users", **small)(user),
        layers.Embedding(300, 8, name="films", **small)(film),
    )
    x = layers.Dot(axes=1, name="match")([a, b])
    model = keras.Model(
        [user, film], layers.Dense(1, bias_initializer=keras.initializers.Constant(3.4), name="stars")(x)
    )
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, [users, films], stars, epochs=6, batch_size=32)


@healthy("recurrent")
def seq2seq_reverses_digits() -> Training:
    """Encoder and decoder of GRUs, the true digits as the decoder's input."""
    x, before, y = reversals(seed=834)
    source, shifted = keras.Input((6,), dtype="int32"), keras.Input((6,), dtype="int32")
    _, state = layers.GRU(48, return_state=True, name="encoder")(
        layers.Embedding(10, 16, name="read")(source)
    )
    out = layers.GRU(48, return_sequences=True, name="decoder")(
        layers.Embedding(10, 16, name="said")(shifted), initial_state=state
    )
    model = keras.Model([source, shifted], layers.Dense(10, "softmax", name="digit")(out))
    model.compile(optimizers.Adam(5e-3, clipnorm=1.0), SPARSE, metrics=["accuracy"])
    return Training(model, [x, before], y, epochs=8, batch_size=24)


@healthy("conv")
def gated_dilated_convolutions() -> Training:
    """As WaveNet has them: tanh times sigmoid, residuals and skips; forecasts a series with a trend."""
    inputs = keras.Input((24, 1))
    x, skips = layers.Conv1D(12, 1, name="in")(inputs), []
    for i, far in enumerate((1, 2, 4, 8)):
        kept = {"padding": "causal", "dilation_rate": far}
        filtered = layers.Conv1D(12, 2, activation="tanh", name=f"filter{i}", **kept)(x)
        gate = layers.Conv1D(12, 2, activation="sigmoid", name=f"gate{i}", **kept)(x)
        z = layers.Multiply()([filtered, gate])
        skips.append(layers.Conv1D(12, 1, name=f"skip{i}")(z))
        x = layers.Add()([x, layers.Conv1D(12, 1, name=f"residual{i}")(z)])
    x = layers.Activation("relu")(layers.Add()(skips))
    x = Call(lambda x: x[:, -1], name="last")(x)
    model = keras.Model(inputs, layers.Dense(1, name="next")(x))
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **series(seed=835).parts(), epochs=8, batch_size=24)


@healthy("recurrent")
def lstm_on_a_trend() -> Training:
    model = keras.Sequential(
        [
            keras.Input((24, 1)),
            layers.Bidirectional(layers.LSTM(16), name="lstm"),
            layers.Dense(16, "relu", name="hidden"),
            layers.Dense(1, name="next"),
        ]
    )
    model.compile(optimizers.Nadam(3e-3), losses.Huber())
    return Training(model, **series(seed=836).parts(), epochs=6, batch_size=32)


@healthy("attention")
def letters_with_warm_up() -> Training:
    """A small GPT: causal attention, warm-up, cosine decay, AdamW, clipping at 1."""
    data = text(seed=837)
    inputs = keras.Input((16,), dtype="int32")
    place = layers.Embedding(16, 24, name="positions")(ops.arange(16))
    x = layers.Embedding(20, 24, name="letters")(inputs) + place
    for i in (1, 2):
        y = layers.LayerNormalization(name=f"ln{i}_a")(x)
        y = layers.MultiHeadAttention(2, 12, dropout=0.1, seed=i, name=f"attention{i}")(
            y, y, use_causal_mask=True
        )
        x = x + y
        y = layers.Dense(48, "gelu", name=f"mlp{i}_up")(layers.LayerNormalization(name=f"ln{i}_b")(x))
        x = x + layers.Dense(24, name=f"mlp{i}_down")(y)
    model = keras.Model(inputs, layers.Dense(20, name="vocabulary")(layers.LayerNormalization(name="ln")(x)))
    rate = schedules.CosineDecay(1e-5, 150, warmup_target=5e-3, warmup_steps=30)
    model.compile(optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0), LOGITS)
    return Training(model, **data.parts(), epochs=8, batch_size=24)


@healthy("custom")
def siamese_pairs() -> Training:
    """One encoder, called twice; are two wines of one kind?"""
    data, rng = wines(seed=838), np.random.default_rng(838)
    other = rng.permutation(len(data.x))
    same = (data.y == data.y[other]).astype("float32")[:, None]
    encoder = keras.Sequential(
        [keras.Input((10,)), layers.Dense(32, "relu"), layers.Dense(16)], name="encoder"
    )
    a, b = keras.Input((10,)), keras.Input((10,))
    apart = Call(lambda pair: ops.abs(pair[0] - pair[1]), name="apart")([encoder(a), encoder(b)])
    model = keras.Model([a, b], layers.Dense(1, "sigmoid", name="same")(apart))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, [data.x, data.x[other]], same, epochs=8, batch_size=24)


@healthy("dense")
def two_outputs_and_weights() -> Training:
    """A class and a number from one trunk; the number's loss counts for a tenth."""
    data, rng = wines(seed=839), np.random.default_rng(839)
    strength = (data.x[:, :3].sum(1, keepdims=True) + 12 + rng.normal(size=(len(data.x), 1)) * 0.3).astype(
        "float32"
    )
    inputs = keras.Input((10,))
    trunk = layers.Dense(32, "relu", name="trunk")(inputs)
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(trunk),
        "strength": layers.Dense(1, name="strength")(trunk),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizers.Adam(5e-3),
        {"kind": SPARSE, "strength": "mse"},
        loss_weights={"kind": 1.0, "strength": 0.1},
    )
    return Training(model, data.x, {"kind": data.y, "strength": strength}, epochs=8, batch_size=24)


@healthy("dense")
def rare_rows_weigh_more() -> Training:
    data = wines(800, seed=840, shares=(0.85, 0.15)).map_y(lambda y: y.astype("float32")[:, None])
    weights = np.where(data.y[:, 0] > 0, 5.0, 1.0).astype("float32")
    model = dense(10, 1, 24, last="sigmoid")
    model.compile(optimizers.SGD(0.05, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32, sample_weight=weights)


@healthy("dense")
def self_normalising() -> Training:
    """Eight SELU layers with LeCun's start and alpha dropout."""
    stack: list[Any] = [keras.Input((7,))]
    for i in range(8):
        stack += [layers.Dense(24, "selu", kernel_initializer="lecun_normal", name=f"selu{i}")]
        stack += [layers.AlphaDropout(0.05, seed=i)] if i % 3 == 2 else []
    model = keras.Sequential([*stack, layers.Dense(1, name="rentals")])
    model.compile(optimizers.SGD(0.01, momentum=0.9, clipnorm=1.0), "mse")
    return Training(model, **bicycles(seed=841).parts(), epochs=8, batch_size=32)


@healthy("dense")
def averaged_weights_and_accumulated_gradients() -> Training:
    model = dense(10, 3, 32, 32, activation="leaky_relu", last="softmax")
    model.compile(
        optimizers.Adam(5e-3, use_ema=True, gradient_accumulation_steps=2), SPARSE, metrics=["accuracy"]
    )
    return Training(model, **wines(seed=842).parts(), epochs=8, batch_size=16)
