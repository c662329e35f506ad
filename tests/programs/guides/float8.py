"""Training with float8 layers, whose scales are weights that the gradient overwrites."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    x, y = data.table()
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.LayerNormalization(), layers.Dense(1)]
    )
    model.quantize("float8")
    model.compile("adam", "mse")
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
