"""Masks: an embedding that makes one, own layers that pass, change and use it, and recurrent layers that skip what it hides."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained


class Halves(layers.Layer):
    """Keeps the first half of the steps, and of the mask."""

    def call(self, inputs):
        return ops.split(inputs, 2, axis=1)[0]

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else ops.split(mask, 2, axis=1)[0]


class Squash(layers.Layer):
    """Leaves the mask as it is."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs):
        return ops.tanh(inputs)


class MaskedSoftmax(layers.Layer):
    """Uses the mask: hidden steps have no share."""

    def call(self, inputs, mask=None):
        shares = ops.exp(inputs) * ops.expand_dims(ops.cast(mask, "float32"), -1)
        return shares / (ops.sum(shares, axis=1, keepdims=True) + 1e-6)


class Branches(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(20, 8, mask_zero=True)
        self.squash = Squash()
        self.both_ways = layers.Bidirectional(layers.GRU(4, return_sequences=True))
        self.halves = Halves()
        self.recurrent = layers.LSTM(6)
        self.softmax = MaskedSoftmax()
        self.distributed = layers.TimeDistributed(layers.Dense(3))
        self.output_layer = layers.Dense(1, activation="sigmoid")

    def call(self, tokens):
        x = self.squash(self.embedding(tokens))
        steps = self.both_ways(x)
        short = self.recurrent(self.halves(steps))
        shares = self.softmax(self.distributed(steps))
        return self.output_layer(layers.concatenate([short, ops.max(shares, axis=1)]))


def train(scope, callbacks):
    tokens, labels = data.sentences()
    model = Branches()
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    history = model.fit(
        tokens,
        labels[:, None],
        batch_size=16,
        epochs=2,
        validation_split=0.25,
        verbose=0,
        callbacks=callbacks,
    )
    return Trained(model, history.history)
