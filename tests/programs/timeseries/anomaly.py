"""Finding anomalies with a convolutional autoencoder of a series, on a Python generator that never ends."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from programs.program import Trained


def windows():
    rng = np.random.default_rng(8)
    while True:
        start = rng.random((8, 1, 1)) * 6
        wave = np.sin(np.arange(16)[None, :, None] / 2 + start) + rng.normal(0, 0.1, (8, 16, 1))
        yield wave.astype("float32"), wave.astype("float32")


def train(scope, callbacks):
    model = keras.Sequential(
        [
            keras.Input((16, 1)),
            layers.Conv1D(8, 7, padding="same", strides=2, activation="relu"),
            layers.Dropout(0.2),
            layers.Conv1D(4, 7, padding="same", strides=2, activation="relu"),
            layers.Conv1DTranspose(4, 7, padding="same", strides=2, activation="relu"),
            layers.Dropout(0.2),
            layers.Conv1DTranspose(8, 7, padding="same", strides=2, activation="relu"),
            layers.Conv1DTranspose(1, 7, padding="same"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    history = model.fit(windows(), steps_per_epoch=3, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
