"""Own callbacks beside the scope: one that stops at the lowest loss and restores its weights, one that sets the learning rate,
one that predicts during the training."""

from __future__ import annotations

import keras
import numpy as np

from programs import data
from programs.program import Trained


class StopAtLowest(keras.callbacks.Callback):
    def __init__(self, patience=1):
        super().__init__()
        self.patience = patience

    def on_train_begin(self, logs=None):
        self.best, self.wait, self.kept = np.inf, 0, None

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_loss"] < self.best:
            self.best, self.wait, self.kept = logs["val_loss"], 0, self.model.get_weights()
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.model.stop_training = True
            self.model.set_weights(self.kept)


class Rate(keras.callbacks.Callback):
    """Sets the learning rate by epoch, and multiplies it within."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.05 / (1 + epoch)

    def on_train_batch_end(self, batch, logs=None):
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.model.optimizer.learning_rate = rate * 0.95


class Predictions(keras.callbacks.Callback):
    def __init__(self, x):
        super().__init__()
        self.x, self.seen = x, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(self.model.predict(self.x, verbose=0).sum())


def train(scope, callbacks):
    x, y = data.table()
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), "mse", metrics=["mae"])
    predictions = Predictions(x[:4])
    history = model.fit(
        x, y, batch_size=8, epochs=6, validation_split=0.3, verbose=0,
        callbacks=[Rate(), *callbacks, StopAtLowest(), predictions],
    )  # fmt: skip
    return Trained(model, {**history.history, "predictions": predictions.seen})
