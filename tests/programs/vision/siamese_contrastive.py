"""A Siamese network: one tower called twice, a distance by Lambda, batch normalization around, and a contrastive loss function."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs import data
from programs.program import Trained


def distance(vectors):
    x, y = vectors
    squares = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(squares, keras.backend.epsilon()))


def contrastive(margin=1.0):
    def loss(y_true, y_pred):
        near = ops.square(y_pred)
        far = ops.square(ops.maximum(margin - y_pred, 0))
        return ops.mean((1 - y_true) * near + y_true * far)

    return loss


def train(scope, callbacks):
    images, labels = data.digits(n=64)
    left, right = np.split(images, 2)
    differ = (labels[:32] != labels[32:]).astype("float32")
    inputs = keras.Input((8, 8, 1))
    x = layers.BatchNormalization()(inputs)
    x = layers.AveragePooling2D(2)(layers.Conv2D(4, 3, activation="tanh")(x))
    x = layers.BatchNormalization()(layers.Flatten()(x))
    tower = keras.Model(inputs, layers.Dense(6, activation="tanh")(x), name="tower")
    first, second = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    apart = layers.Lambda(distance, output_shape=(1,))([tower(first), tower(second)])
    output = layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(apart))
    model = keras.Model([first, second], output)
    model.compile(keras.optimizers.RMSprop(), contrastive(), metrics=["accuracy"])
    history = model.fit(
        [left, right], differ, validation_data=([left[:8], right[:8]], differ[:8]), batch_size=8, epochs=2,
        verbose=0, callbacks=callbacks,
    )  # fmt: skip
    return Trained(model, history.history)
