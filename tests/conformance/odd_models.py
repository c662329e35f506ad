"""Models whose tapped program may round differently, and a training that returns all its bits."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import fitscope as fs

BACKEND = keras.backend.backend()


class Cast(layers.Layer):
    def call(self, x):
        return ops.cast(ops.cast(x, "bfloat16"), "float32")


def norm(kind: type) -> keras.Model:
    pooled = [kind(), layers.GlobalAveragePooling1D(), layers.Dense(2)]
    return keras.Sequential([layers.Input((20, 16)), layers.Dense(16), *pooled])


def wide() -> keras.Model:
    return keras.Sequential([layers.Input((20, 16)), layers.Flatten(), layers.Dense(4096), layers.Dense(2)])


def cast() -> keras.Model:
    return keras.Sequential(
        [layers.Input((20, 16)), layers.Flatten(), layers.Dense(32), Cast(), layers.Dense(2)]
    )


def text() -> keras.Model:
    """A transformer for classification, after the example of Keras."""
    inputs = layers.Input((20, 16))
    x = layers.Dense(16)(inputs)
    attended = layers.MultiHeadAttention(2, 8)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(0.1)(attended))
    hidden = layers.Dense(16)(layers.Dense(32, activation="relu")(x))
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(0.1)(hidden))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Dense(2)(layers.Dense(20, activation="relu")(x)))


MODELS = {
    "layer norm": (lambda: norm(layers.LayerNormalization), "adam", None),
    "batch norm": (lambda: norm(layers.BatchNormalization), "adam", None),
    "wide, by SGD": (wide, "sgd", fs.weight_gradients()),
    "casts": (cast, "adam", fs.gradients()),
    "text": (text, "adam", None),
}


def train(
    build, scope: fs.Scope | None, *, optimizer="adam", samples=64, epochs=4, **compile_
) -> dict[str, list]:
    keras.backend.clear_session()  # the same names of layers each time
    keras.utils.set_random_seed(0)
    model = build()
    model.compile(optimizer, "mse", metrics=["mae"], **compile_)
    rng = np.random.default_rng(0)
    x, y = rng.random((samples, 20, 16), "float32"), rng.random((samples, 2), "float32")
    history = model.fit(
        x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=[scope] if scope else [],
        validation_data=(x[:24], y[:24]),
    ).history  # fmt: skip
    state = [ops.convert_to_numpy(v).tobytes() for v in (*model.variables, *model.optimizer.variables)]
    return {"state": state, "history": [np.array(values).tobytes() for values in history.values()]}
