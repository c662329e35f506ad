"""Several steps in one execution, on tf.data, with a rest that does not fill the last one."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    images, labels = data.digits(n=56)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8).prefetch(2)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], steps_per_execution=3)
    history = model.fit(batches, epochs=2, validation_data=batches.take(2), verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
