"""The endpoint layer: targets are an input, and the last layer adds the loss and keeps the metric."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained


class Logistic(layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, logits, targets=None):
        if targets is not None:
            self.add_loss(self.loss_fn(targets, logits))
            self.accuracy.update_state(targets, logits)
        return ops.sigmoid(logits)


def train(scope, callbacks):
    x, y = data.table()
    inputs, targets = keras.Input((8,), name="inputs"), keras.Input((1,), name="targets")
    logits = layers.Dense(1)(layers.Dense(8, activation="relu")(inputs))
    model = keras.Model([inputs, targets], Logistic(name="predictions")(logits, targets))
    model.compile(keras.optimizers.Adam(1e-2))
    history = model.fit(
        {"inputs": x, "targets": (y > 0).astype("float32")},
        batch_size=16,
        epochs=2,
        verbose=0,
        callbacks=callbacks,
    )
    return Trained(model, history.history)
