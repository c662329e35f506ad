"""Faults of the start and of depth: initial weights, dead units, saturation, vanishing and exploding signals.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
from keras import initializers, layers, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import blobs, curve, images, tokens, waves
from diagnosis.models import LOGITS, SPARSE, OwnAttention, convnet, mlp


@fault("dense", expect("vanishing_gradient", *(f"h{i}" for i in range(1, 9))), expect("saturated"))
def sigmoid_stack(broken: bool) -> Training:
    data = blobs(seed=20)
    model = mlp(
        8,
        3,
        widths=(16,) * 14,
        activation="sigmoid" if broken else "selu",
        kernel_initializer="glorot_uniform" if broken else "lecun_normal",
    )
    model.compile(optimizers.SGD(0.05), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault("recurrent", expect("vanishing_gradient", "rnn"), expect("loss_not_decreasing"))
def recurrence_forgets(broken: bool) -> Training:
    """The label is the sign of the first of 30 time steps; the recurrent weights start near zero and stay there."""
    data = waves(320, 30, 1, seed=23).map_x(lambda x: x * 0.1)
    for x, y in ((data.x, data.y), data.validation):
        x[:, 0, 0] = 2.0 * y - 1
    keep = initializers.Orthogonal(0.05 if broken else 1.0)
    model = keras.Sequential(
        [
            layers.Input((30, 1)),
            layers.SimpleRNN(16, recurrent_initializer=keep, name="rnn"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.SGD(0.03), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=7)


@fault(
    "recurrent",
    expect("exploding_gradient", "rnn"),
    expect("nonfinite", "rnn"),
    expect("loss_diverging"),
    expect("bad_initial_loss"),
)
def recurrence_explodes(broken: bool) -> Training:
    data = waves(320, 24, 2, seed=24)
    keep = initializers.RandomNormal(stddev=1.2) if broken else initializers.Orthogonal()
    model = keras.Sequential(
        [
            layers.Input((24, 2)),
            layers.SimpleRNN(
                16, activation="linear" if broken else "tanh", recurrent_initializer=keep, name="rnn"
            ),
            layers.Dense(2, name="head"),
        ]
    )
    model.compile(optimizers.SGD(0.03), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault(
    "dense",
    expect("exploding_gradient", "h3"),
    expect("bad_initial_loss"),
    expect("updates_too_large"),
    expect("loss_diverging"),
)
def one_layer_starts_too_large(broken: bool) -> Training:
    data = curve(seed=26)
    start = initializers.RandomNormal(stddev=60.0) if broken else initializers.HeNormal()
    model = mlp(6, 1, widths=(32, 32, 32, 32), head=None, change={"h3": {"kernel_initializer": start}})
    model.compile(optimizers.Adam(1e-3), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault("dense", expect("saturated", "h1", "h2"), expect("vanishing_gradient", "h1", "h2"), step=0)
def tanh_saturated_by_start(broken: bool) -> Training:
    data = curve(seed=31)
    start = initializers.RandomNormal(stddev=15.0) if broken else initializers.GlorotNormal()
    model = mlp(6, 1, widths=(32, 32), activation="tanh", head=None, kernel_initializer=start)
    model.compile(optimizers.SGD(0.03), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault("conv", expect("saturated", "conv1"), expect("vanishing_gradient", "conv1"), step=0)
def sigmoid_convolution_saturated(broken: bool) -> Training:
    data = images(seed=32)
    start = initializers.RandomNormal(stddev=20.0) if broken else initializers.GlorotNormal()
    model = convnet(3, change={"conv1": {"activation": "sigmoid", "kernel_initializer": start}})
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=7)


@fault(
    "attention",
    expect("saturated", "attn"),
    expect("vanishing_gradient", "attn", "query", "key"),
    expect("layer_not_learning", "query", "key"),
    step=0,
)
def attention_scores_without_scale(broken: bool) -> Training:
    """Queries and keys start a hundred times too large and the scores are not scaled: the softmax picks one key."""
    data = tokens(seed=33)
    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(
        20, 16, embeddings_initializer=initializers.RandomNormal(stddev=1.0), name="embedding"
    )(words)
    x = OwnAttention(16, scale=not broken, spread=200.0 if broken else 1.0, name="attn")(x)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault("recurrent", expect("input_not_normalised"), expect("saturated", "lstm"), step=0)
def recurrent_inputs_unscaled(broken: bool) -> Training:
    """Prices in cents go into an LSTM as they are."""
    data = waves(seed=34).map_x(lambda x: x * 900 + 25_000 if broken else x)
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.LSTM(12, name="lstm"), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)
