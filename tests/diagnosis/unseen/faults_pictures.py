"""Faults in pictures: masks, colours and decibels, norms that do not norm, codes that die and depth without skips."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import initializers, layers, optimizers, regularizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import parted
from diagnosis.models import SPARSE
from diagnosis.unseen.data import recordings, scenes, standard_scenes


def segmenter(*head: Any) -> Any:
    """Convolutions at full size; `head` is what comes behind them."""
    inside = [layers.Conv2D(12, 3, padding="same", activation="relu", name=f"conv{i}") for i in (1, 2)]
    return keras.Sequential([layers.Input((12, 12, 3)), *inside, *head])


@fault(
    "conv", expect("label_problem"), expect("output_loss_mismatch", "head"), expect("class_collapse", "head")
)
def masks_rescaled_twice(broken: bool) -> Training:
    """The masks were from 0 to 1 already when they were divided by 255 like the pictures."""
    x, mask, _ = scenes(seed=9101)
    mask = mask / 255 if broken else mask
    model = segmenter(layers.Conv2D(1, 1, activation="sigmoid", name="head"))
    model.compile(optimizers.Adam(4e-3), "binary_crossentropy")
    return Training(model, **parted((x - x.mean()) / x.std(), mask, 320).parts(), epochs=6)


@fault(
    "conv",
    expect("label_problem"),
    expect("loss_not_decreasing"),
    expect("class_collapse", "head"),
    expect("overfitting"),
)
def masks_of_other_pictures(broken: bool) -> Training:
    """Pictures and masks were listed in different orders, so no mask fits its picture."""
    x, mask, _ = scenes(seed=9102)
    mask = mask[np.random.default_rng(9102).permutation(len(mask))] if broken else mask
    model = segmenter(layers.Conv2D(1, 1, activation="sigmoid", name="head"))
    model.compile(optimizers.Nadam(3e-3), "binary_crossentropy")
    return Training(model, **parted((x - x.mean()) / x.std(), mask, 320).parts(), epochs=8)


@fault(
    "conv", expect("wrong_axis", "head"), expect("output_loss_mismatch", "head"), expect("nonfinite", "head")
)
def softmax_down_the_rows_of_a_map(broken: bool) -> Training:
    """Each pixel has a class of three, but the softmax runs over the height of the map."""
    x, mask, kind = scenes(seed=9103)
    y = (mask[..., 0] * (1 + kind[:, None, None])).astype("int32")
    scores = layers.Conv2D(3, 3, padding="same", name="scores")
    model = segmenter(scores, layers.Softmax(axis=1 if broken else -1, name="head"))
    model.compile(optimizers.Adam(4e-3), SPARSE)
    return Training(model, **parted((x - x.mean()) / x.std(), y, 320).parts(), epochs=8)


@fault("conv", expect("output_loss_mismatch", "head"), expect("saturated", "head"))
def sigmoid_decoder_for_standardised_pictures(broken: bool) -> Training:
    """The decoder of an autoencoder ends in a sigmoid, and the pictures have a mean of 0. The twin's run from 0 to 1."""
    x, _, _ = scenes(seed=9104)
    x = (x - x.mean()) / x.std() if broken else x / 255
    model = keras.Sequential(
        [
            layers.Input((12, 12, 3)),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="down"),
            layers.Conv2D(8, 3, strides=2, padding="same", activation="relu", name="code"),
            layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu", name="up"),
            layers.Conv2DTranspose(3, 3, strides=2, padding="same", activation="sigmoid", name="head"),
        ]
    )
    model.compile(optimizers.Adam(4e-3), "mse")
    return Training(model, **parted(x, x, 320).parts(), epochs=8)


@fault(
    "conv", expect("batchnorm", "norm"), expect("input_not_normalised"), expect("layer_not_learning", "norm")
)
def frozen_norm_of_a_fresh_net(broken: bool) -> Training:
    """A batch norm is to scale the raw pixels, but it was frozen before it saw any: it passes them on as they are."""
    x, _, kind = scenes(seed=9105)
    norm = layers.BatchNormalization(momentum=0.9, name="norm")
    norm.trainable = not broken
    model = keras.Sequential(
        [
            layers.Input((12, 12, 3)),
            norm,
            layers.Conv2D(12, 3, strides=2, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="conv2"),
            layers.Flatten(name="flatten"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.SGD(0.02, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **parted(x, kind, 320).parts(), epochs=8)


@fault(
    "conv",
    expect("batchnorm", "norm2"),
    expect("layer_not_learning", "conv1", "conv2", "conv3", "norm1", "norm2"),
    expect("vanishing_gradient", "conv1", "conv2", "conv3", "norm1", "norm2"),
    expect("dead_relu", "relu2", "norm2"),
    step=0,
    within=20,
)
def zero_gamma_without_a_skip(broken: bool) -> Training:
    """The scale of a batch norm starts at zero, as in a residual block, but there is no skip that goes around it."""
    start = "zeros" if broken else "ones"
    model = keras.Sequential(
        [
            layers.Input((12, 12, 3)),
            layers.Conv2D(12, 3, padding="same", use_bias=False, name="conv1"),
            layers.BatchNormalization(momentum=0.9, name="norm1"),
            layers.ReLU(name="relu1"),
            layers.Conv2D(12, 3, strides=2, padding="same", use_bias=False, name="conv2"),
            layers.BatchNormalization(momentum=0.9, gamma_initializer=start, name="norm2"),
            layers.ReLU(name="relu2"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="conv3"),
            layers.Flatten(name="flatten"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.AdamW(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **standard_scenes(seed=9106).parts(), epochs=6)


@fault("conv", expect("odd_batch"), expect("loss_spike"), step=30)
def a_shard_of_negatives(broken: bool) -> Training:
    """The pictures lie in random order, but the shard that makes up batch 30 of 40 holds them with inverted brightness."""
    data = standard_scenes(n=640, seed=9107)
    if broken:
        data.x[480:496] = -data.x[480:496] + 1.0
    model = keras.Sequential(
        [
            layers.Input((12, 12, 3)),
            layers.Conv2D(12, 3, strides=2, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="conv2"),
            layers.GlobalMaxPooling2D(name="pool"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(6e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5, shuffle=False)


@fault(
    "dense",
    expect("dead_relu", "code"),
    expect("layer_not_learning", "code", "widen"),
    expect("vanishing_gradient", "code", "squeeze"),
    expect("loss_not_decreasing"),
)
def sparsity_penalty_kills_the_code(broken: bool) -> Training:
    """The penalty on the activity of the code is a hundred thousand times too strong, and the autoencoder gives up its code."""
    x, _, _ = scenes(size=8, colours=1, seed=9108)
    x = x / 255
    penalty = regularizers.L1(0.5 if broken else 5e-6)
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Flatten(name="flatten"),
            layers.Dense(48, "relu", name="squeeze"),
            layers.Dense(24, "relu", activity_regularizer=penalty, name="code"),
            layers.Dense(48, "relu", name="widen"),
            layers.Dense(64, name="flat"),
            layers.Reshape((8, 8, 1), name="picture"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **parted(x, x, 320).parts(), epochs=12)


@fault(
    "dense",
    expect("vanishing_gradient", *(f"deep{i}" for i in range(1, 13))),
    expect("layer_not_learning", *(f"deep{i}" for i in range(1, 13))),
    expect("class_collapse", "head"),
    expect("loss_not_decreasing"),
)
def sixteen_layers_without_skips(broken: bool) -> Training:
    """Sixteen layers that start small, as the branches of a residual net do, but the skips were forgotten."""
    start = initializers.VarianceScaling(0.25, "fan_avg")
    pixels = layers.Input((8, 8, 1))
    x = layers.Dense(24, "tanh", name="stem")(layers.Flatten(name="flatten")(pixels))
    for i in range(1, 17):
        inner = layers.Dense(24, "tanh", kernel_initializer=start, name=f"deep{i}")(x)
        x = inner if broken else layers.Add(name=f"add{i}")([x, inner])
    x = layers.LayerNormalization(name="norm")(x)
    model = keras.Model(pixels, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.SGD(0.01, momentum=0.9), SPARSE, metrics=["accuracy"])
    data = standard_scenes(n=480, size=8, colours=1, seed=9109)
    return Training(model, **data.parts(), epochs=10)


@fault("conv", expect("input_not_normalised"), expect("dead_relu", "conv1"), expect("bad_initial_loss"))
def decibels_left_as_they_are(broken: bool) -> Training:
    """Spectrograms in decibels, about -55 with a spread of 10, go into the first convolution as they are."""
    data = recordings(n=480, length=24, channels=8, classes=4, seed=9110)
    data = data.map_x(lambda x: ((x * 10 - 55) if broken else x)[..., None].astype("float32"))
    model = keras.Sequential(
        [
            layers.Input((24, 8, 1)),
            layers.Conv2D(12, (5, 3), strides=2, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="conv2"),
            layers.Flatten(name="flatten"),
            layers.Dense(4, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8)
