"""Quantization to int8 after a first training, then low-rank adaptation of the quantized layers, compiled anew and trained."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    tokens, labels = data.sentences()
    inputs = keras.Input((12,), dtype="int32")
    x = layers.Embedding(20, 8, name="embedding")(inputs)
    x = layers.EinsumDense("abc,cd->abd", output_shape=(None, 8), bias_axes="d", name="einsum")(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(16, activation="relu", name="hidden")(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="head")(x))

    def fit():
        model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
        return model.fit(
            tokens, labels[:, None], batch_size=16, epochs=1, verbose=0, callbacks=callbacks
        ).history

    first = fit()
    model.quantize("int8")
    for name in ("embedding", "einsum", "hidden"):
        model.get_layer(name).enable_lora(2)
    second = fit()
    return Trained(model, [first, second])
