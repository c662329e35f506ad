"""Forecasting with an LSTM on windows that `timeseries_dataset_from_array` cuts, stopped early and saved by checkpoints."""

from __future__ import annotations

import tempfile

import keras
import numpy as np
from keras import layers

from programs.program import Trained


def train(scope, callbacks):
    time = np.arange(80) / 5
    rng = np.random.default_rng(7)
    series = np.stack([np.sin(time), np.cos(time), rng.normal(size=80)], axis=1).astype("float32")
    series = (series - series.mean(0)) / series.std(0)

    def windows(part):
        return keras.utils.timeseries_dataset_from_array(
            part[:-8], part[8:, :1], sequence_length=6, sampling_rate=1, batch_size=12
        )

    inputs = keras.Input((6, 3))
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(8)(inputs)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    with tempfile.TemporaryDirectory() as folder:
        stop = keras.callbacks.EarlyStopping("val_loss", min_delta=0, patience=2)
        save = keras.callbacks.ModelCheckpoint(
            f"{folder}/model.weights.h5", "val_loss", save_weights_only=True, save_best_only=True
        )
        history = model.fit(
            windows(series[:56]), epochs=2, validation_data=windows(series[56:]), verbose=0,
            callbacks=[*callbacks, stop, save],
        )  # fmt: skip
    return Trained(model, history.history)
