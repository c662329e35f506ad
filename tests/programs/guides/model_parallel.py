"""`fit` under `keras.distribution.ModelParallel`: two devices for the data by two for the weights."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    images, labels = data.digits()
    mesh = keras.distribution.DeviceMesh((2, 2), ["data", "model"], keras.distribution.list_devices())
    layout = keras.distribution.LayoutMap(mesh)
    layout["d1/kernel"] = (None, "model")
    layout["d1/bias"] = ("model",)
    layout["d2/output"] = ("data", None)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="data")
    )
    try:
        inputs = keras.Input((8, 8, 1))
        x = layers.Dense(16, use_bias=False, activation="relu", name="d1")(layers.Flatten()(inputs))
        x = layers.LayerNormalization()(layers.Dropout(0.4)(x))
        model = keras.Model(inputs, layers.Dense(4, activation="softmax", name="d2")(x))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(images, labels, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
        return Trained(model, history.history)
    finally:
        keras.distribution.set_distribution(None)
