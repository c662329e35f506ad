"""`fit` under `keras.distribution.DataParallel` on four devices."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    images, labels = data.digits()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        inputs = keras.Input((8, 8, 1))
        x = layers.BatchNormalization()(layers.Conv2D(6, 3, use_bias=False)(inputs))
        x = layers.Flatten()(layers.ReLU()(x))
        x = layers.Dropout(0.4)(layers.Dense(16, activation="relu")(x))
        model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(
            images, labels, batch_size=16, epochs=2, validation_data=(images[:16], labels[:16]), verbose=0,
            callbacks=callbacks,
        )  # fmt: skip
        return Trained(model, history.history)
    finally:
        keras.distribution.set_distribution(None)
