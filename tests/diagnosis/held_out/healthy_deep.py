"""Healthy programs with convolutions, recurrence and attention.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, optimizers

from diagnosis.case import Training, healthy
from diagnosis.data import images, tokens
from diagnosis.models import SPARSE, OwnAttention, convnet


@healthy("conv")
def convnet_with_batchnorm() -> Training:
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv1"),
            layers.BatchNormalization(momentum=0.9, name="bn1"),
            layers.ReLU(name="relu1"),
            layers.MaxPooling2D(name="pool"),
            layers.Conv2D(12, 3, padding="same", use_bias=False, name="conv2"),
            layers.BatchNormalization(momentum=0.9, name="bn2"),
            layers.ReLU(name="relu2"),
            layers.GlobalAveragePooling2D(name="mean"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **images(480, seed=241).parts(), epochs=5, validates=True)


@healthy("conv")
def convnet_with_group_norm() -> Training:
    model = convnet(3, after={"conv1": layers.GroupNormalization(4, name="gn")})
    model.compile(optimizers.SGD(0.03, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **images(seed=242).parts(), epochs=5)


@healthy("conv")
def pixels_rescaled_in_the_model() -> Training:
    """Raw pixels from 0 to 255 go into a layer that rescales them."""
    data = images(seed=245).map_x(lambda x: np.clip(x * 45 + 110, 0, 255).astype("float32"))
    inputs = layers.Input((8, 8, 1))
    x = layers.Rescaling(1 / 64, offset=-1.7, name="rescaling")(inputs)
    x = layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1")(x)
    x = layers.Flatten(name="flatten")(x)
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@healthy("recurrent")
def bidirectional_over_words() -> Training:
    model = keras.Sequential(
        [
            layers.Input((10,), dtype="int32"),
            layers.Embedding(20, 8, mask_zero=True, name="embedding"),
            layers.Bidirectional(layers.GRU(8, name="gru"), name="both"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **tokens(seed=254).parts(), epochs=5)


@healthy("attention")
def own_attention_with_padding() -> Training:
    """Half of each sentence may be padding; the mask hides it."""
    from diagnosis.models import Call

    data = tokens(seed=262)
    rng = np.random.default_rng(0)
    for x in (data.x, data.validation[0]):
        x[np.arange(10)[None, :] >= rng.integers(5, 11, len(x))[:, None]] = 0
    words = layers.Input((10,), dtype="int32")
    mask = Call(lambda x: keras.ops.cast(x > 0, "float32"), name="mask")(words)
    x = layers.Embedding(20, 16, name="embedding")(words)
    x = OwnAttention(16, masked=-1e9, name="attn")([x, mask])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@healthy("attention")
def pooling_by_attention() -> Training:
    """One score per word, normalised over the words: a softmax over axis 1 that is meant."""
    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, name="embedding")(words)
    scores = layers.Dense(1, name="scores")(layers.Dense(16, "tanh", name="inner")(x))
    share = layers.Softmax(axis=1, name="share")(scores)
    x = layers.Flatten(name="flatten")(layers.Dot(axes=1, name="mix")([share, x]))
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **tokens(480, seed=264).parts(), epochs=4)
