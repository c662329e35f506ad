"""Faults of convolutional nets on pictures."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.fresh.data import masks, shapes
from diagnosis.models import SPARSE, Call


def convnet(*behind: Any, head: Any = "softmax", **settings: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(12, 3, padding="same", activation="relu", name="conv1", **settings),
            layers.MaxPooling2D(),
            layers.Conv2D(24, 3, padding="same", activation="relu", name="conv2", **settings),
            layers.Flatten(),
            *behind,
            layers.Dense(3, activation=head, name="head", **settings),
        ]
    )


@fault("conv", expect("output_loss_mismatch", "head"), step=0)
def logits_without_saying_so(broken: bool) -> Training:
    model = convnet(head=None if broken else "softmax")
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=880).parts(), epochs=5, batch_size=24)


@fault("conv", expect("dropout_too_high", "drop"), step=0)
def keeps_what_it_should_drop(broken: bool) -> Training:
    """0.95 was meant as the share that is kept."""
    model = convnet(
        layers.Dense(32, "relu", name="fc"), layers.Dropout(0.95 if broken else 0.05, seed=1, name="drop")
    )
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=881).parts(), epochs=6, batch_size=24)


@fault("conv", expect("batchnorm", "bn"), expect("layer_not_learning", "fc"), step=0)
def norm_of_single_pictures(broken: bool) -> Training:
    """Batches of one: each unit of a dense layer is its own mean, so the norm returns zero."""
    model = convnet(
        layers.Dense(24, name="fc"), layers.BatchNormalization(name="bn"), layers.ReLU(name="relu")
    )
    model.compile(optimizers.Adam(1e-3), SPARSE, metrics=["accuracy"])
    return Training(
        model,
        **shapes(120 if broken else 360, seed=882).parts(),
        epochs=2 if broken else 6,
        batch_size=1 if broken else 24,
    )


@fault(
    "conv",
    expect("precision_underflow"),
    expect("updates_too_small"),
    expect("layer_not_learning"),
    expect("precision_underflow", "conv1", "conv2", "fc", "head"),
    expect("layer_not_learning", "conv1", "conv2", "fc", "head"),
)
def half_weights_swallow_the_update(broken: bool) -> Training:
    """The weights themselves are float16 and the steps are smaller than their last digit."""
    dtype = "float16" if broken else "float32"
    model = convnet(layers.Dense(24, "relu", name="fc", dtype=dtype), dtype=dtype)
    model.compile(optimizers.SGD(1e-4 if broken else 1e-1), SPARSE)
    return Training(model, **shapes(seed=883).parts(), epochs=5, batch_size=24)


@fault("conv", expect("layer_not_learning", "conv1", "conv2"))
def binarised_in_the_middle(broken: bool) -> Training:
    """A threshold behind the convolutions has no gradient."""
    hard = Call(
        lambda x: ops.cast(x > 0.1, "float32") if broken else ops.sigmoid(8 * (x - 0.1)), name="threshold"
    )
    model = convnet(hard)
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **shapes(seed=884).parts(), epochs=6, batch_size=24)


@fault("conv", expect("input_not_normalised"))
def pictures_as_bytes(broken: bool) -> Training:
    scale = 255 if broken else 1
    data = shapes(seed=885).map_x(lambda x: (x * scale).astype("float32"))
    model = convnet()
    model.compile(optimizers.SGD(0.03, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=24)


@fault("conv", expect("nonfinite", "unit"), step=0, within=14)
def direction_of_black_pictures(broken: bool) -> Training:
    """Some pictures are black; the length of their features is zero, and so is what they are divided by."""
    data = shapes(seed=886)
    data.x[100:104] = 0
    floor = 0.0 if broken else 1e-3
    unit = Call(lambda x: x / ops.sqrt(ops.sum(x * x, -1, keepdims=True) + floor), name="unit")
    model = convnet(unit)
    model.compile(optimizers.Adam(2e-3), SPARSE)
    return Training(model, **data.parts(), epochs=5, batch_size=24)


@fault(
    "conv",
    expect("class_collapse"),
    expect("dead_relu", "mask"),
    expect("output_loss_mismatch", "mask"),
    expect("loss_not_decreasing"),
    expect("saturated", "mask"),
)
def mask_all_background(broken: bool) -> Training:
    """The mask is cut off at zero by a ReLU, which says background everywhere and stays there."""
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(12, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(12, 3, padding="same", activation="relu", name="conv2"),
            layers.Conv2D(
                1,
                1,
                activation="relu" if broken else "sigmoid",
                bias_initializer=keras.initializers.Constant(-1.0),
                name="mask",
            ),
        ]
    )
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy")
    return Training(model, **masks(240, seed=887).parts(), epochs=5, batch_size=16)


@fault("conv", expect("odd_batch"), expect("loss_spike"), expect("label_problem"), step=30, within=2)
def a_batch_with_shifted_labels(broken: bool) -> Training:
    """Late in the training one batch comes with the labels of another."""
    data = shapes(960, seed=888)
    if broken:
        part = slice(30 * 24, 31 * 24)
        data.y[part] = (data.y[part] + 1) % 3
    model = convnet()
    model.compile(optimizers.Adam(4e-3), SPARSE)
    return Training(model, **data.parts(), epochs=1, batch_size=24, shuffle=False)
