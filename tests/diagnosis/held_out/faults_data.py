"""Faults of the data: NaN, scale, dead columns, wrong, shuffled or constant labels, order, imbalance, one bad batch.

Held out: do not tune a rule on these programs (see ../README.md).
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import blobs, curve, images, waves
from diagnosis.models import SPARSE, convnet, mlp


@fault("dense", expect("nonfinite"), step=10)
def nan_in_one_row(broken: bool) -> Training:
    """One missing value in row 165 of 480; the batches are not shuffled, so it comes in step 10 first."""
    data = blobs(seed=40)
    data.x[16 * 10 + 5, 3] = np.nan if broken else 0.0
    model = mlp(8, 3)
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5, shuffle=False)


@fault("dense", expect("nonfinite"), step=0)
def column_divided_by_zero(broken: bool) -> Training:
    """A constant column was standardised with its standard deviation, zero."""
    data = curve(seed=41)

    def standardised(x):
        if not broken:
            return x
        x = x.copy()
        with np.errstate(invalid="ignore", divide="ignore"):
            x[:, 5] = np.float32(0.0) / np.float32(0.0)
        return x

    data = data.map_x(standardised)
    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=4)


@fault("recurrent", expect("nonfinite"), expect("label_problem"), step=12)
def missing_target(broken: bool) -> Training:
    """Regression with one target that nobody measured."""
    data = waves(seed=42).map_y(lambda y: (2.0 * y - 1).astype("float32")[:, None])
    data.y[16 * 12 + 3, 0] = np.nan if broken else 0.5
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.GRU(12, name="gru"), layers.Dense(1, name="head")]
    )
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, **data.parts(), epochs=4, shuffle=False)


@fault("dense", expect("label_problem"), expect("output_loss_mismatch", "head"), step=0, backends=("jax",))
def labels_from_1(broken: bool) -> Training:
    """Classes 1, 2, 3 for three outputs. TensorFlow and PyTorch refuse it; JAX trains on."""
    data = blobs(seed=49).map_y(lambda y: y + 1 if broken else y)
    model = mlp(8, 3)
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("label_problem"))
def mislabelled_samples(broken: bool) -> Training:
    """One label in twenty is wrong, in data that else are easy."""
    data = blobs(seed=54, spread=0.5)
    if broken:
        wrong = np.random.default_rng(1).choice(len(data.y), len(data.y) // 20, replace=False)
        data.y[wrong] = (data.y[wrong] + 1) % 3
    model = mlp(8, 3)
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8)


@fault("conv", expect("label_problem"))
def mislabelled_pictures(broken: bool) -> Training:
    data = images(seed=55, noise=0.3)
    if broken:
        wrong = np.random.default_rng(2).choice(len(data.y), len(data.y) // 20, replace=False)
        data.y[wrong] = (data.y[wrong] + 1) % 3
    model = convnet(3)
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=10)


@fault("dense", expect("loss_spike"), step=20)
def one_bad_batch(broken: bool) -> Training:
    """Sixteen rows were never scaled. They come together, at step 20, 50, 80, …"""
    data = curve(seed=56)
    data.x[16 * 20 : 16 * 21] *= 60.0 if broken else 1.0
    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(2e-3), "mse")
    return Training(model, **data.parts(), epochs=5, shuffle=False)
