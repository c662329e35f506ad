"""Faults where the model meets its loss: missing, doubled or wrong output activations, wrong axes, wrong reductions.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import curve, images, tokens, waves
from diagnosis.models import SPARSE, OwnAttention, OwnStep, convnet, mlp


@fault("conv", expect("output_loss_mismatch", "head"), step=0)
def logits_taken_for_probabilities(broken: bool) -> Training:
    data = images(seed=71)
    model = convnet(3, head=None if broken else "softmax")
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("recurrent", expect("output_loss_mismatch", "head"), expect("wrong_axis", "head"), step=0)
def softmax_over_one_unit(broken: bool) -> Training:
    """A softmax over one number is always 1."""
    data = waves(seed=74).map_y(lambda y: y.astype("float32")[:, None])
    model = keras.Sequential(
        [
            layers.Input((12, 2)),
            layers.LSTM(10, name="lstm"),
            layers.Dense(1, "softmax" if broken else "sigmoid", name="head"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("output_loss_mismatch", "head"), expect("dead_relu", "head"), step=0)
def relu_for_targets_of_both_signs(broken: bool) -> Training:
    data = curve(seed=76)
    model = mlp(6, 1, head="relu" if broken else None)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("output_loss_mismatch", "head"), expect("saturated", "head"), step=0)
def tanh_for_targets_beyond_one(broken: bool) -> Training:
    data = curve(seed=79).map_y(lambda y: 6 * y)
    model = mlp(6, 1, head="tanh" if broken else None)
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=5)


@fault(  # torch cannot compute the gradient on a CPU, with or without a scope
    "conv", expect("wrong_axis", "classes"), expect("output_loss_mismatch", "classes"), step=0, backends=("jax", "tensorflow"),
)  # fmt: skip
def softmax_over_the_rows(broken: bool) -> Training:
    """A class for each pixel, with the softmax over the height of the picture."""
    data = images(240, seed=81)
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(3, 3, padding="same", name="head"),
            layers.Softmax(axis=1 if broken else -1, name="classes"),
        ]
    )
    data = data.map_y(lambda y: y)
    labels = [np.where(x[..., 0] > 1, 2, np.where(x[..., 0] > 0, 1, 0)) for x in (data.x, data.validation[0])]
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, data.x, labels[0], (data.validation[0], labels[1]), epochs=6)


@fault("attention", expect("wrong_axis", "classes"), expect("output_loss_mismatch", "classes"), step=0)
def softmax_over_the_words(broken: bool) -> Training:
    """A class for each word, with the softmax over the words of the sentence."""
    data = tokens(seed=83)
    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, name="embedding")(words)
    x = layers.Add(name="add")([x, OwnAttention(16, name="attn")(x)])
    x = layers.Softmax(axis=1 if broken else -1, name="classes")(layers.Dense(4, name="head")(x))
    model = keras.Model(words, x)
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    held = data.validation[0]
    return Training(model, data.x, data.x // 5, (held, held // 5), epochs=5)


@fault(
    "custom",
    expect("loss_diverging"),
    expect("exploding_weights"),
    expect("updates_too_large"),
    expect("exploding_gradient"),
)
def loss_with_the_wrong_sign(broken: bool) -> Training:
    """The step of one's own goes up the hill."""
    data = curve(seed=85)

    class Climber(OwnStep):
        def objective(self, x, y):
            loss = super().objective(x, y)
            return -loss if broken else loss

    inputs = layers.Input((6,))
    x = layers.Dense(32, "relu", name="h1")(inputs)
    model = Climber(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.SGD(0.05), "mse")
    return Training(model, **data.parts(), epochs=6)
