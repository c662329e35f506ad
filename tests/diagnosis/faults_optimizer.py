"""Faults of the optimizer: learning rate, schedule, momentum, epsilon, clipping, decay."""

from __future__ import annotations

from keras import optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, expect, fault
from diagnosis.data import blobs, curve, images, tokens
from diagnosis.models import LOGITS, SPARSE, convnet, mlp, transformer


@fault("dense", expect("updates_too_large"), expect("loss_diverging"), expect("optimizer_misconfigured"))
def adam_rate_of_one(broken: bool) -> Training:
    data = blobs(seed=2)
    model = mlp(8, 3, widths=(32, 32, 32))
    model.compile(optimizers.Adam(1.0 if broken else 2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("attention", expect("updates_too_large"), expect("loss_diverging"), expect("optimizer_misconfigured"))
def transformer_rate_too_high(broken: bool) -> Training:
    data = tokens(seed=4)
    model = transformer(blocks=2, norm_first=False)
    model.compile(optimizers.Adam(0.5 if broken else 2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault(
    "dense",
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
    expect("optimizer_misconfigured"),
    note=True,
)
def rate_too_low_dense(broken: bool) -> Training:
    data = blobs(seed=5)
    model = mlp(8, 3)
    model.compile(optimizers.SGD(1e-7 if broken else 0.1), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "dense",
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
    expect("optimizer_misconfigured"),
    step=30,
    within=20,
    note=True,
)
def rate_decays_to_nothing(broken: bool) -> Training:
    """A decay per step where a decay per epoch was meant."""
    data = curve(seed=7)
    model = mlp(6, 1, widths=(32, 32, 32), head=None)
    rate = schedules.ExponentialDecay(1e-3, decay_steps=1 if broken else 60, decay_rate=0.7)
    model.compile(optimizers.Adam(rate), "mse")
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("optimizer_misconfigured"), expect("updates_too_small"), expect("loss_not_decreasing"))
def adam_epsilon_of_ten(broken: bool) -> Training:
    data = blobs(seed=9)
    model = mlp(8, 3)
    model.compile(optimizers.Adam(5e-3, epsilon=10.0 if broken else 1e-7), SPARSE)
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("optimizer_misconfigured"), expect("loss_diverging"), expect("updates_too_large"))
def momentum_of_almost_one(broken: bool) -> Training:
    data = curve(seed=12)
    model = mlp(6, 1, head=None)
    model.compile(optimizers.SGD(0.05, momentum=0.9995 if broken else 0.8), "mse")
    return Training(model, **data.parts(), epochs=6)


@fault(
    "conv",
    expect("dead_relu", "conv1", "conv2"),
    expect("updates_too_large"),
    expect("optimizer_misconfigured"),
    step=40,
    within=5,
)
def convolution_dies_after_rate_spike(broken: bool) -> Training:
    data = images(seed=15)
    model = convnet(3, head=None)
    spike = 40.0 if broken else 0.05
    rate = schedules.PiecewiseConstantDecay([40, 42], [0.05, spike, 0.05])
    model.compile(optimizers.SGD(rate), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=7)


@fault(
    "attention", expect("clipped_gradient"), expect("updates_too_small"), expect("optimizer_misconfigured")
)
def global_clipnorm_too_small(broken: bool) -> Training:
    data = tokens(seed=16)
    model = transformer()
    model.compile(optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1e-5 if broken else 1.0), SPARSE)
    return Training(model, **data.parts(), epochs=6)
