"""Collaborative filtering: a subclassed model of four regularized embeddings and a dot product, with no layer on top."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs.program import Trained


class Recommender(keras.Model):
    def __init__(self, users, films, size):
        super().__init__()
        settings = {
            "embeddings_initializer": "he_normal",
            "embeddings_regularizer": keras.regularizers.l2(1e-6),
        }
        self.user, self.user_bias = layers.Embedding(users, size, **settings), layers.Embedding(users, 1)
        self.film, self.film_bias = layers.Embedding(films, size, **settings), layers.Embedding(films, 1)

    def call(self, pairs):
        user, film = self.user(pairs[:, 0]), self.film(pairs[:, 1])
        match = ops.tensordot(user, film, 2)
        return ops.nn.sigmoid(match + self.user_bias(pairs[:, 0]) + self.film_bias(pairs[:, 1]))


def train(scope, callbacks):
    rng = np.random.default_rng(6)
    pairs = np.stack([rng.integers(0, 10, 48), rng.integers(0, 12, 48)], axis=1).astype("int32")
    liked = rng.random((48, 1), "float32")
    model = Recommender(10, 12, 4)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy())
    history = model.fit(
        pairs, liked, batch_size=16, epochs=2, validation_split=0.25, verbose=0, callbacks=callbacks
    )
    return Trained(model, history.history)
