"""Structured data: columns of words and numbers that lookups and a normalization turn into numbers, in tf.data and in the model."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from programs.program import Trained

THINGS = ("fixed", "normal", "reversible")


def train(scope, callbacks):
    rng = np.random.default_rng(5)
    columns = {
        "age": rng.normal(50, 10, (48, 1)).astype("float32"),
        "pressure": rng.normal(120, 20, (48, 1)).astype("float32"),
        "thal": rng.choice(THINGS, (48, 1)),
        "vessels": rng.integers(0, 4, (48, 1)),
    }
    ill = ((columns["age"] > 50) ^ (columns["thal"] == "fixed")).astype("float32")
    words = layers.StringLookup(output_mode="one_hot")
    words.adapt(columns["thal"])
    vessels = layers.IntegerLookup(output_mode="multi_hot", vocabulary=[0, 1, 2, 3])

    def prepared(row, label):
        return {**row, "thal": words(row["thal"]), "vessels": vessels(row["vessels"])}, label

    batches = tf.data.Dataset.from_tensor_slices((columns, ill)).shuffle(48, seed=2).batch(12).map(prepared)
    inputs = {
        "age": keras.Input((1,), name="age"),
        "pressure": keras.Input((1,), name="pressure"),
        "thal": keras.Input((words.vocabulary_size(),), name="thal"),
        "vessels": keras.Input((vessels.vocabulary_size(),), name="vessels"),
    }
    numbers = layers.concatenate([inputs["age"], inputs["pressure"]])
    normal = layers.Normalization()
    normal.adapt(np.concatenate([columns["age"], columns["pressure"]], axis=1))
    groups = layers.Discretization(bin_boundaries=[40.0, 50.0, 60.0], output_mode="one_hot")(inputs["age"])
    x = layers.concatenate([normal(numbers), groups, inputs["thal"], inputs["vessels"]])
    x = layers.Dropout(0.5)(layers.Dense(16, activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(batches, epochs=2, validation_data=batches.take(1), verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
