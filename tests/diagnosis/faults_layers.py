"""Faults inside the model: NaN and Inf born in a layer, layers that do not learn, dropout, batch norm, half precision."""

from __future__ import annotations

import keras
import numpy as np
from keras import initializers, layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import blobs, curve, images, parted, scaled, waves
from diagnosis.models import SPARSE, Call, convnet, mlp


@fault("custom", expect("nonfinite", "log"), step=0)
def logarithm_of_zero(broken: bool) -> Training:
    """Counts go through a logarithm; some are zero."""
    counts = np.random.default_rng(90).poisson(4, (576, 6)).astype("float32")
    amount = (np.log1p(counts) @ np.float32([1, -1, 0.5, 0.5, -1, 1]))[:, None]
    data = parted(counts, scaled(amount), 480)
    inputs = layers.Input((6,))
    x = Call(lambda x: ops.log(x if broken else x + 1), name="log")(inputs)
    x = layers.Dense(24, "relu", name="h1")(x)
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=4)


@fault("custom", expect("nonfinite", "exp"), step=34)
def exponential_overflows(broken: bool) -> Training:
    """A layer exponentiates without a bound; the rows of step 34 are long ones."""
    data = curve(960, seed=91)
    data.x[16 * 34 : 16 * 34 + 2, 0] = 95.0 if broken else 1.0
    inputs = layers.Input((6,))
    x = Call(lambda x: ops.concatenate([x[:, 1:], ops.exp(x[:, :1])], axis=-1), name="exp")(inputs)
    x = layers.Dense(24, "tanh", name="h1")(x)
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=2, shuffle=False)


@fault("custom", expect("nonfinite", "height"), step=18)
def root_of_a_negative(broken: bool) -> Training:
    """The height over a circle, sqrt(1 - x²); one measured x lies just outside of it."""
    data = curve(seed=93).map_x(lambda x: np.clip(x / 3, -0.99, 0.99))
    data.x[16 * 18 + 1, 2] = 1.02
    inputs = layers.Input((6,))

    def height(x):
        square = 1 - ops.square(x)
        return ops.concatenate([x, ops.sqrt(square if broken else ops.maximum(square, 1e-4))], -1)

    x = Call(height, name="height")(inputs)
    x = layers.Dense(24, "tanh", name="h1")(x)
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, **data.parts(), epochs=5, shuffle=False)


@fault("custom", expect("nonfinite"), expect("nonfinite", "head"))
def own_loss_takes_log_of_zero(broken: bool) -> Training:
    """A cross-entropy written by hand, without a floor under the logarithm."""
    data = blobs(seed=95, spread=0.4)

    def entropy(y, predicted):
        chosen = ops.sum(ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), 3) * predicted, -1)
        floor = 0.0 if broken else 1e-7
        return -ops.mean(ops.log(chosen + floor))

    model = mlp(
        8,
        3,
        change={"head": {"kernel_initializer": initializers.RandomNormal(stddev=60.0 if broken else 0.3)}},
    )
    model.compile(optimizers.Adam(5e-3), entropy)
    return Training(model, **data.parts(), epochs=4)


@fault("dense", expect("layer_not_learning", "h2"), note=True, step=0)
def frozen_by_mistake(broken: bool) -> Training:
    """A layer with fresh random weights is frozen."""
    data = blobs(seed=96, spread=1.5)
    model = mlp(8, 3, widths=(32, 32, 32))
    model.get_layer("h2").trainable = not broken
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "custom",
    expect("layer_not_learning", "encoder", "pass"),
    expect("vanishing_gradient", "encoder", "pass"),
    step=0,
)
def gradient_stopped(broken: bool) -> Training:
    data = curve(seed=99)
    inputs = layers.Input((6,))
    x = layers.Dense(24, "relu", name="encoder")(inputs)
    x = Call(lambda x: ops.stop_gradient(x) if broken else x, name="pass")(x)
    x = layers.Dense(24, "relu", name="decoder")(x)
    model = keras.Model(inputs, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=5)


@fault(
    "recurrent",
    expect("layer_not_learning", "lstm", "round"),
    expect("vanishing_gradient", "lstm", "round"),
    step=0,
)
def gradient_lost_by_rounding(broken: bool) -> Training:
    """A rounding has no gradient, so nothing below it learns."""
    data = waves(seed=100)
    model = keras.Sequential(
        [
            layers.Input((12, 2)),
            layers.LSTM(12, name="lstm"),
            Call(lambda x: ops.round(x * 4) / 4 if broken else x, name="round"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("conv", expect("dropout_too_high", "dropout"), step=0)
def dropout_of_channels(broken: bool) -> Training:
    data = images(seed=103)
    model = convnet(3, after={"conv1": layers.SpatialDropout2D(0.9 if broken else 0.1, name="dropout")})
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("batchnorm", "bn"), step=0)
def batchnorm_never_catches_up(broken: bool) -> Training:
    """With a momentum of 0.9999 the moving statistics are still those of the start when it validates."""
    data = blobs(seed=104).map_x(lambda x: x + 2)
    model = keras.Sequential(
        [
            layers.Input((8,)),
            layers.Dense(32, "relu", name="h1"),
            layers.BatchNormalization(momentum=0.9999 if broken else 0.9, name="bn"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, validates=True)


@fault("conv", expect("batchnorm", "bn"), step=0)
def batchnorm_in_batches_of_two(broken: bool) -> Training:
    """The statistics of two samples are noise; behind a flattened picture they are a coin toss."""
    data = images(240, seed=105)
    batchnorm = layers.BatchNormalization(momentum=0.9, name="bn")
    model = convnet(3, after={"flatten": batchnorm})
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(
        model, **data.parts(), epochs=2 if broken else 9, batch_size=2 if broken else 24, validates=True
    )


@fault(
    "dense",
    expect("precision_underflow"),
    expect("precision_underflow", "h1", "h2"),
    expect("vanishing_gradient"),
)
def float16_without_loss_scale(broken: bool) -> Training:
    """The loss is weighted with 1e-5; in float16 its gradients are zero before they reach a weight."""
    data = curve(seed=106)
    dtype = "float16" if broken else "float32"
    model = mlp(6, 1, head=None, dtype=dtype, change={"head": {"dtype": dtype}})
    model.compile(optimizers.Adam(5e-3, epsilon=1e-7), "mse", loss_weights=[1e-5])
    return Training(model, **data.parts(), epochs=5)
