"""Character-level translation with two LSTMs: the states of one begin the other."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    tokens, _ = data.sentences(length=8, vocabulary=12)
    source = keras.utils.to_categorical(tokens, 12).astype("float32")
    target = keras.utils.to_categorical(tokens[:, ::-1], 12).astype("float32")
    shifted = np.concatenate([np.zeros_like(target[:, :1]), target[:, :-1]], axis=1)
    encoder_inputs = keras.Input((None, 12))
    _, hidden, cell = layers.LSTM(8, return_state=True)(encoder_inputs)
    decoder_inputs = keras.Input((None, 12))
    decoded, _, _ = layers.LSTM(8, return_sequences=True, return_state=True)(
        decoder_inputs, initial_state=[hidden, cell]
    )
    model = keras.Model([encoder_inputs, decoder_inputs], layers.Dense(12, activation="softmax")(decoded))
    model.compile("rmsprop", "categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        [source, shifted],
        target,
        batch_size=12,
        epochs=2,
        validation_split=0.25,
        verbose=0,
        callbacks=callbacks,
    )
    return Trained(model, history.history)
