"""Mixed precision: float16 layers under a loss scale that Keras chooses as it goes, and a float32 output."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    keras.config.set_dtype_policy("mixed_float16")
    images, labels = data.digits()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Dense(4),
            layers.Activation("softmax", dtype="float32"),
        ]
    )
    # A scale that overflows at first, so that steps are left out until it has halved.
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(1e-2), initial_scale=2.0**24, dynamic_growth_steps=3
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
