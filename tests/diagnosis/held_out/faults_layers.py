"""Faults inside the model: NaN and Inf born in a layer, layers that do not learn, dropout, batch norm, half precision.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
from keras import layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import blobs, images, tokens
from diagnosis.models import SPARSE, Call, OwnAttention, OwnStep, convnet, transformer


@fault("custom", expect("nonfinite", "unit"), step=15)
def norm_of_a_zero_vector(broken: bool) -> Training:
    """The forward pass is fine, but the gradient of the square root at zero is not."""
    data = blobs(seed=92)
    data.x[16 * 15 + 2] = 0.0
    inputs = layers.Input((8,))
    x = layers.Dense(16, use_bias=False, name="h1")(inputs)

    def unit(x):
        length = ops.sqrt(ops.sum(ops.square(x), -1, keepdims=True) + (0.0 if broken else 1e-6))
        return x / (length + 1e-3)

    x = Call(unit, name="unit")(x)
    model = keras.Model(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=4, shuffle=False)


@fault("attention", expect("nonfinite", "attn"), step=11)
def mask_hides_every_key(broken: bool) -> Training:
    """A sentence of padding only: every score is -inf, and the softmax of that is NaN."""
    data = tokens(480, seed=94)
    data.x[16 * 11 + 9] = 0
    words = layers.Input((10,), dtype="int32")
    mask = Call(lambda x: ops.cast(x > 0, "float32"), name="mask")(words)
    x = layers.Embedding(20, 16, name="embedding")(words)
    x = OwnAttention(16, masked=float("-inf") if broken else -1e4, name="attn")([x, mask])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=3, shuffle=False)


@fault("conv", expect("layer_not_learning", "head"), note=True, step=0)
def frozen_head(broken: bool) -> Training:
    """The wrong side was frozen: the new head, not the body."""
    data = images(seed=97)
    model = convnet(3)
    model.get_layer("head").trainable = not broken
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("attention", expect("layer_not_learning", "embedding"), note=True, step=0)
def frozen_fresh_embedding(broken: bool) -> Training:
    """The embedding was to be loaded and frozen; it was only frozen."""
    data = tokens(seed=98)
    model = transformer(trainable=not broken)
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("custom", expect("layer_not_learning", "encoder"), step=0)
def step_forgets_the_encoder(broken: bool) -> Training:
    """The training step of one's own gives the optimizer the weights of the head only."""
    data = blobs(seed=101, spread=1.5)

    class Half(OwnStep):
        def chosen(self, weight):
            return "encoder" not in weight.path or not broken

    inputs = layers.Input((8,))
    x = layers.Dense(24, "relu", name="encoder")(inputs)
    model = Half(inputs, layers.Dense(3, "softmax", name="head")(x))
    model.compile(optimizers.SGD(0.1), SPARSE)
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("dropout_too_high", "dropout"), step=0)
def dropout_keeps_a_twentieth(broken: bool) -> Training:
    """The share to keep was given as the share to drop."""
    data = blobs(seed=102, spread=1.5)
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(32, "relu", name="h1"),
            layers.Dropout(0.95 if broken else 0.1, name="dropout"),
            layers.Dense(32, "relu", name="h2"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "conv",
    expect("precision_underflow"),
    expect("precision_underflow", "conv1", "conv2"),
    expect("vanishing_gradient", "conv1", "conv2"),
)
def mixed_float16_without_loss_scale(broken: bool) -> Training:
    """Errors are divided by ten million pixels, and the optimizer does not scale the loss."""
    data = images(240, seed=107, noise=0.3)
    policy = keras.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu", dtype=policy, name="conv1"),
            layers.Conv2D(8, 3, padding="same", activation="relu", dtype=policy, name="conv2"),
            layers.Conv2D(1, 3, padding="same", dtype="float32", name="head"),
        ]
    )

    def per_pixel(y, predicted):
        return ops.mean(ops.square(y - predicted), (1, 2, 3)) / 10_000_000

    optimizer = optimizers.Adam(5e-3, epsilon=1e-12)
    model.compile(
        optimizer if broken else optimizers.LossScaleOptimizer(optimizer), per_pixel, auto_scale_loss=False
    )
    held = data.validation[0]
    return Training(model, data.x, -data.x, (held, -held), epochs=7)
