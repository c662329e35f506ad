"""`fit` with all that it offers: named inputs and targets, losses and weights for each output, own loss and metric classes,
and the callbacks that stop, slow down, save and restore a training."""

from __future__ import annotations

import tempfile

import keras
import numpy as np
from keras import layers, ops

from programs.program import Trained


class Contrast(keras.losses.Loss):
    """A squared error that also pushes predictions away from the middle."""

    def __init__(self, push=0.1, name="contrast"):
        super().__init__(name=name)
        self.push = push

    def call(self, y_true, y_pred):
        error = ops.mean(ops.square(y_true - y_pred), axis=-1)
        return error + self.push * ops.mean(ops.square(0.5 - y_pred), axis=-1)


class Positives(keras.metrics.Metric):
    """The mean number of positive predictions in a batch."""

    def __init__(self, name="positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.positives = self.add_variable((), initializer="zeros", name="positives")
        self.batches = self.add_variable((), initializer="zeros", name="batches")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.positives.assign(self.positives + ops.sum(ops.cast(y_pred > 0, "float32")))
        self.batches.assign(self.batches + 1.0)

    def result(self):
        return self.positives / ops.maximum(self.batches, 1.0)


def network():
    picture = keras.Input((8, 8, 1), name="picture")
    series = keras.Input((6, 4), name="series")
    seen = layers.GlobalMaxPooling2D()(layers.Conv2D(4, 3, activation="relu")(picture))
    heard = layers.GlobalMaxPooling1D()(layers.Conv1D(4, 3, activation="relu")(series))
    both = layers.concatenate([seen, heard])
    score = layers.Dense(1, name="score")(both)
    kind = layers.Dense(3, name="kind")(both)
    return keras.Model([picture, series], {"score": score, "kind": kind})


def train(scope, callbacks):
    rng = np.random.default_rng(5)
    x = {
        "picture": rng.random((40, 8, 8, 1), "float32"),
        "series": rng.random((40, 6, 4), "float32"),
    }
    y = {"score": rng.random((40, 1), "float32"), "kind": rng.integers(0, 3, (40, 1))}
    weight = {"score": rng.random(40, "float32"), "kind": rng.random(40, "float32")}
    model = network()
    model.compile(
        keras.optimizers.RMSprop(0.01),
        loss={"score": Contrast(), "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        metrics={"score": [Positives(), keras.metrics.MeanAbsoluteError(name="mae")], "kind": ["accuracy"]},
        loss_weights={"score": 2.0, "kind": 1.0},
    )
    with tempfile.TemporaryDirectory() as folder:
        history = model.fit(
            x, y, sample_weight=weight, batch_size=8, epochs=4, validation_split=0.2, verbose=0,
            callbacks=[
                *callbacks,
                keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
                keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0, restore_best_weights=True),
                keras.callbacks.ModelCheckpoint(f"{folder}/best.weights.h5", save_best_only=True, save_weights_only=True),
                keras.callbacks.BackupAndRestore(f"{folder}/backup"),
            ],
        )  # fmt: skip
    return Trained(model, history.history)
