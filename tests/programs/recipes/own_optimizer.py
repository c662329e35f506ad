"""Gradient centralization: an optimizer of one's own that changes gradients before it applies them."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained


class Centralized(keras.optimizers.RMSprop):
    def apply(self, grads, trainable_variables=None):
        grads = [
            grad - ops.mean(grad, axis=list(range(len(grad.shape) - 1)), keepdims=True)
            if grad is not None and len(grad.shape) > 1
            else grad
            for grad in grads
        ]
        return super().apply(grads, trainable_variables)


def train(scope, callbacks):
    images, labels = data.digits(channels=3)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(Centralized(learning_rate=1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
