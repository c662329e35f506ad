"""A miniature GPT: its own causal mask in a transformer block, two outputs of which one has a loss, and text made each epoch."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs import data
from programs.program import Trained

LENGTH, WORDS, WIDTH = 10, 20, 8


def causal_mask(n, to, source):
    rows, columns = ops.arange(to)[:, None], ops.arange(source)
    mask = ops.cast(rows >= columns - source + to, "bool")
    return ops.tile(ops.reshape(mask, (1, to, source)), (n, 1, 1))


class Block(layers.Layer):
    def __init__(self, heads, hidden, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, WIDTH)
        self.ffn = keras.Sequential([layers.Dense(hidden, activation="relu"), layers.Dense(WIDTH)])
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1, self.dropout2 = layers.Dropout(rate), layers.Dropout(rate)

    def call(self, inputs):
        n, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        attended = self.attention(inputs, inputs, attention_mask=causal_mask(n, length, length))
        x = self.norm1(inputs + self.dropout1(attended))
        return self.norm2(x + self.dropout2(self.ffn(x)))


class Embeddings(layers.Layer):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = layers.Embedding(WORDS, WIDTH), layers.Embedding(LENGTH, WIDTH)

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(0, ops.shape(x)[-1], 1))


class Writer(keras.callbacks.Callback):
    """Writes on from a start, one token at a time, with the model that is being trained."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(6)
        self.written = []

    def on_epoch_end(self, epoch, logs=None):
        text = [1, 2]
        while len(text) < 5:
            padded = np.array([text + [0] * (LENGTH - len(text))])
            logits, _ = self.model.predict(padded, verbose=0)
            best = np.argsort(logits[0, len(text) - 1])[-3:]
            text.append(int(self.rng.choice(best)))
        self.written.append(text)


def train(scope, callbacks):
    tokens, _ = data.sentences(length=LENGTH + 1)
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Block(2, 16)(Embeddings()(inputs))
    model = keras.Model(inputs, [layers.Dense(WORDS)(x), x])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss, None])
    writer = Writer()
    history = model.fit(
        tokens[:, :-1], tokens[:, 1:], batch_size=16, epochs=2, verbose=0, callbacks=[*callbacks, writer]
    )
    return Trained(model, {**history.history, "written": writer.written})
