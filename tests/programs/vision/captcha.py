"""Reading characters from images with CTC: labels are an input, and a layer at the end adds the loss; `compile` has none."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs import data
from programs.program import Trained

CLASSES, LENGTH = 5, 3


class CtcLoss(layers.Layer):
    def call(self, labels, predicted):
        n, steps = ops.shape(predicted)[0], predicted.shape[1]
        loss = ops.ctc_loss(
            ops.cast(labels, "int32"),
            ops.log(predicted + 1e-7),
            ops.full((n,), LENGTH, dtype="int32"),
            ops.full((n,), steps, dtype="int32"),
            mask_index=0,
        )
        self.add_loss(ops.mean(loss))
        return predicted


def train(scope, callbacks):
    images, _ = data.digits(n=40, size=16)
    labels = np.random.default_rng(8).integers(1, CLASSES, size=(40, LENGTH)).astype("float32")
    image = keras.Input((16, 16, 1), name="image")
    label = keras.Input((LENGTH,), name="label")
    x = layers.Conv2D(4, 3, activation="relu", kernel_initializer="he_normal", padding="same", name="conv1")(
        image
    )
    x = layers.MaxPooling2D(2, name="pool1")(x)
    x = layers.Reshape((8, 32), name="reshape")(x)
    x = layers.Dropout(0.2)(layers.Dense(12, activation="relu", name="dense1")(x))
    x = layers.Bidirectional(layers.LSTM(6, return_sequences=True, dropout=0.25))(x)
    x = layers.Dense(CLASSES, activation="softmax", name="dense2")(x)
    model = keras.Model([image, label], CtcLoss(name="ctc_loss")(label, x))
    model.compile(keras.optimizers.Adam(1e-2))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)
    history = model.fit(
        {"image": images[:32], "label": labels[:32]}, batch_size=8, epochs=2, verbose=0, callbacks=[*callbacks, stop],
        validation_data=({"image": images[32:], "label": labels[32:]}, None),
    )  # fmt: skip
    return Trained(model, history.history)
