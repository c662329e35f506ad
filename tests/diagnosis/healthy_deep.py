"""Healthy programs with convolutions, recurrence and attention."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, losses, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.data import images, tokens, waves
from diagnosis.models import SPARSE, convnet, transformer


@healthy("conv")
def small_convnet() -> Training:
    model = convnet(3)
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **images(seed=240).parts(), epochs=5)


@healthy("conv")
def residual_convnet() -> Training:
    inputs = layers.Input((8, 8, 1))
    x = layers.Conv2D(8, 3, padding="same", name="stem")(inputs)
    for i in range(3):
        inner = layers.Conv2D(8, 3, padding="same", activation="relu", name=f"in{i}")(x)
        x = layers.Add(name=f"add{i}")([x, layers.Conv2D(8, 3, padding="same", name=f"out{i}")(inner)])
        x = layers.ReLU(name=f"relu{i}")(x)
    x = layers.GlobalMaxPooling2D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **images(seed=243).parts(), epochs=5)


@healthy("conv")
def unit_pixels() -> Training:
    """Pixels between 0 and 1, as everyone scales them."""
    data = images(seed=244, noise=0.4)
    low, high = data.x.min(), data.x.max()
    model = convnet(3)
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.map_x(lambda x: (x - low) / (high - low)).parts(), epochs=7)


@healthy("conv")
def transfer_with_a_frozen_base() -> Training:
    """A base that was trained on other classes is frozen on purpose; only the head learns."""
    data = images(seed=246, classes=4)
    base = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(12, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(16, 3, padding="same", strides=2, activation="relu", name="conv2"),
            layers.Flatten(name="flatten"),
        ],
        name="base",
    )
    first = keras.Sequential([base, layers.Dense(4, "softmax", name="old")])
    first.compile(optimizers.Adam(3e-3), SPARSE)
    first.fit(data.x, data.y, batch_size=32, epochs=4, verbose=0)
    base.trainable = False
    model = keras.Sequential([layers.Input((8, 8, 1)), base, layers.Dense(2, "softmax", name="head")])
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.map_y(lambda y: (y % 2).astype("int32")).parts(), epochs=5)


@healthy("conv")
def segmentation() -> Training:
    """A class for each pixel."""
    data = images(240, seed=247)
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(3, 3, padding="same", name="head"),
            layers.Softmax(name="classes"),
        ]
    )
    labels = [np.where(x[..., 0] > 1, 2, np.where(x[..., 0] > 0, 1, 0)) for x in (data.x, data.validation[0])]
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, data.x, labels[0], (data.validation[0], labels[1]), epochs=5)


@healthy("conv")
def separable_with_leaky_relu() -> Training:
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.SeparableConv2D(12, 3, padding="same", name="sep1"),
            layers.LeakyReLU(name="leaky1"),
            layers.SeparableConv2D(12, 3, padding="same", strides=2, name="sep2"),
            layers.LeakyReLU(name="leaky2"),
            layers.Flatten(name="flatten"),
            layers.Dense(3, name="head"),
        ]
    )
    model.compile(
        optimizers.RMSprop(3e-3), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return Training(model, **images(seed=248).parts(), epochs=5)


@healthy("recurrent")
def small_lstm() -> Training:
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.LSTM(12, name="lstm"), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **waves(seed=250).parts(), epochs=6)


@healthy("recurrent")
def stacked_gru() -> Training:
    model = keras.Sequential(
        [
            layers.Input((12, 2)),
            layers.GRU(10, return_sequences=True, name="gru1"),
            layers.GRU(10, name="gru2"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **waves(seed=251).parts(), epochs=6)


@healthy("recurrent")
def simple_rnn_with_clipping() -> Training:
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.SimpleRNN(16, name="rnn"), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.SGD(0.1, clipnorm=1.0), SPARSE, metrics=["accuracy"])
    return Training(model, **waves(seed=252).parts(), epochs=7)


@healthy("recurrent")
def forecast_of_the_next_value() -> Training:
    data = waves(400, 13, 1, seed=253)
    model = keras.Sequential(
        [layers.Input((12, 1)), layers.LSTM(12, name="lstm"), layers.Dense(1, name="head")]
    )
    model.compile(optimizers.Adam(1e-2), "mse")
    held = data.validation[0]
    return Training(model, data.x[:, :12], data.x[:, 12], (held[:, :12], held[:, 12]), epochs=5)


@healthy("recurrent")
def embedding_with_rare_words() -> Training:
    """A vocabulary of 400 of which a batch has a few: most rows of the embedding get no gradient in most steps."""
    rng = np.random.default_rng(255)
    x = np.minimum(rng.zipf(1.6, (640, 12)), 399).astype("int32")
    y = ((x % 3 == 0).sum(1) >= 2).astype("int32")
    model = keras.Sequential(
        [
            layers.Input((12,), dtype="int32"),
            layers.Embedding(400, 8, name="embedding"),
            layers.GlobalAveragePooling1D(name="pool"),
            layers.Dense(16, "relu", name="h1"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, x[:560], y[:560], (x[560:], y[560:]), epochs=6)


@healthy("recurrent")
def convolutions_over_time() -> Training:
    model = keras.Sequential(
        [
            layers.Input((12, 2)),
            layers.Conv1D(12, 3, dilation_rate=1, padding="causal", activation="relu", name="conv1"),
            layers.Conv1D(12, 3, dilation_rate=2, padding="causal", activation="relu", name="conv2"),
            layers.GlobalAveragePooling1D(name="pool"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **waves(seed=256).parts(), epochs=6)


@healthy("attention")
def small_transformer() -> Training:
    model = transformer(blocks=2)
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **tokens(480, seed=260).parts(), epochs=4)


@healthy("attention")
def transformer_norm_last_with_warmup() -> Training:
    rate = schedules.PolynomialDecay(1e-4, decay_steps=40, end_learning_rate=1e-3)
    model = transformer(blocks=2, norm_first=False)
    model.compile(optimizers.AdamW(rate, weight_decay=0.01), SPARSE, metrics=["accuracy"])
    return Training(model, **tokens(480, seed=261).parts(), epochs=3)


@healthy("attention")
def next_word_with_causal_mask() -> Training:
    """A tiny language model: each word is followed by one of two."""
    rng = np.random.default_rng(263)
    x = np.zeros((400, 11), "int32")
    x[:, 0] = rng.integers(0, 12, 400)
    for i in range(1, 11):
        x[:, i] = (x[:, i - 1] * 5 + 1 + rng.integers(0, 2, 400)) % 12
    words = layers.Input((10,), dtype="int32")
    h = layers.Embedding(12, 16, name="embedding")(words)
    inner = layers.LayerNormalization(name="norm")(h)
    h = layers.Add(name="add")(
        [h, layers.MultiHeadAttention(2, 8, name="attn")(inner, inner, use_causal_mask=True)]
    )
    model = keras.Model(words, layers.Dense(12, "softmax", name="head")(h))
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, x[:340, :-1], x[:340, 1:], (x[340:, :-1], x[340:, 1:]), epochs=6)
