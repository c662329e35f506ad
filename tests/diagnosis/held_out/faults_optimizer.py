"""Faults of the optimizer: learning rate, schedule, momentum, epsilon, clipping, decay.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
from keras import layers, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, expect, fault
from diagnosis.data import blobs, curve, images, waves
from diagnosis.models import LOGITS, SPARSE, convnet, mlp


@fault(
    "dense",
    expect("updates_too_large"),
    expect("loss_diverging"),
    expect("exploding_gradient"),
    expect("optimizer_misconfigured"),
)
def rate_too_high_regression(broken: bool) -> Training:
    data = curve(seed=1)
    model = mlp(6, 1, head=None)
    model.compile(optimizers.SGD(1.2 if broken else 0.05), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault(
    "conv",
    expect("updates_too_large"),
    expect("loss_diverging"),
    expect("exploding_gradient"),
    expect("optimizer_misconfigured"),
)
def rate_too_high_convnet(broken: bool) -> Training:
    data = images(seed=3)
    model = convnet(3)
    model.compile(optimizers.SGD(5.0 if broken else 0.05, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "recurrent",
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
    expect("optimizer_misconfigured"),
    note=True,
)
def rate_too_low_recurrent(broken: bool) -> Training:
    data = waves(seed=6)
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.GRU(12, name="gru"), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.Adam(1e-8 if broken else 1e-2), SPARSE)
    return Training(model, **data.parts(), epochs=5)


@fault(
    "dense",
    expect("loss_diverging"),
    expect("updates_too_large"),
    expect("optimizer_misconfigured"),
    expect("exploding_gradient"),
)
def warmup_without_end(broken: bool) -> Training:
    """The warm-up is never told to stop, so the rate grows for ever."""
    data = curve(seed=8)
    model = mlp(6, 1, head=None)
    rate = (
        schedules.PolynomialDecay(0.001, decay_steps=180, end_learning_rate=4.0)
        if broken
        else schedules.PolynomialDecay(0.001, decay_steps=40, end_learning_rate=0.05)
    )
    model.compile(optimizers.SGD(rate), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault("conv", expect("clipped_gradient"), expect("updates_too_small"), expect("optimizer_misconfigured"))
def clipnorm_of_a_millionth(broken: bool) -> Training:
    data = images(seed=10)
    model = convnet(3)
    model.compile(optimizers.SGD(0.1, clipnorm=1e-6 if broken else 5.0), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "recurrent", expect("clipped_gradient"), expect("updates_too_small"), expect("optimizer_misconfigured")
)
def clipvalue_of_a_hundred_thousandth(broken: bool) -> Training:
    data = waves(seed=11)
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.LSTM(12, name="lstm"), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.SGD(0.2, momentum=0.9, clipvalue=1e-5 if broken else 1.0), SPARSE)
    return Training(model, **data.parts(), epochs=7)


@fault(
    "dense",
    expect("optimizer_misconfigured"),
    expect("loss_not_decreasing"),
    expect("vanishing_gradient"),
    expect("class_collapse"),
)
def decay_eats_the_weights(broken: bool) -> Training:
    """The decay of AdamW multiplies the rate; 50 was copied from a library where it does not."""
    data = blobs(seed=13)
    model = mlp(8, 3)
    model.compile(optimizers.AdamW(1e-2, weight_decay=50.0 if broken else 1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "dense",
    expect("dead_relu", "h1", "h2", "h3"),
    expect("updates_too_large"),
    expect("optimizer_misconfigured"),
    step=60,
    within=5,
)
def relu_dies_after_rate_spike(broken: bool) -> Training:
    data = blobs(seed=14, spread=1.5)
    model = mlp(8, 3, widths=(24, 24, 24), head=None)
    spike = 10.0 if broken else 0.05
    rate = schedules.PiecewiseConstantDecay([60, 63], [0.05, spike, 0.05])
    model.compile(optimizers.SGD(rate), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)
