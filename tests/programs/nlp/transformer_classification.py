"""Text classification with a transformer block and embeddings of tokens and places, both as own layers."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained


class TransformerBlock(layers.Layer):
    def __init__(self, width, heads, hidden, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=heads, key_dim=width)
        self.ffn = keras.Sequential([layers.Dense(hidden, activation="relu"), layers.Dense(width)])
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        x = self.norm1(inputs + self.dropout1(self.attention(inputs, inputs)))
        return self.norm2(x + self.dropout2(self.ffn(x)))


class Embeddings(layers.Layer):
    def __init__(self, length, vocabulary, width):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width)
        self.places = layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(0, ops.shape(x)[-1], 1))


def train(scope, callbacks):
    tokens, labels = data.sentences()
    inputs = keras.Input((12,))
    x = TransformerBlock(8, 2, 8)(Embeddings(12, 20, 8)(inputs))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    x = layers.Dropout(0.1)(layers.Dense(8, activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        tokens, labels, batch_size=16, epochs=2, validation_data=(tokens[:16], labels[:16]), verbose=0,
        callbacks=callbacks,
    )  # fmt: skip
    return Trained(model, history.history)
