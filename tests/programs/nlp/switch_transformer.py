"""A mixture of experts: a router that sends each token to one expert, and adds a loss that keeps them balanced."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained

WIDTH, EXPERTS, TOKENS = 8, 3, 12


class Router(layers.Layer):
    def __init__(self, capacity):
        super().__init__()
        self.route = layers.Dense(EXPERTS)
        self.capacity = capacity
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs, training=False):
        logits = self.route(inputs)
        if training:
            logits += keras.random.uniform(ops.shape(logits), 0.9, 1.1, seed=self.seeds)
        shares = keras.activations.softmax(logits, axis=-1)
        gate, index = ops.top_k(shares, k=1)
        chosen = ops.one_hot(ops.squeeze(index, -1), EXPERTS)
        density, proxy = ops.mean(chosen, axis=0), ops.mean(shares, axis=0)
        self.add_loss(ops.mean(proxy * density) * float(EXPERTS**2))
        place = ops.cast(ops.cumsum(chosen, axis=0) * chosen, "int32")
        kept = chosen * ops.cast(ops.less(place, self.capacity), "float32")
        gate = ops.squeeze(gate, -1) * ops.sum(kept, axis=-1)
        where = ops.one_hot(ops.sum(place * ops.cast(kept, "int32"), axis=-1), self.capacity)
        combined = gate[:, None, None] * kept[:, :, None] * where[:, None, :]
        return ops.cast(combined > 0, "float32"), combined


class Switch(layers.Layer):
    def __init__(self, tokens_per_batch):
        super().__init__()
        self.experts = [
            keras.Sequential([layers.Dense(12, activation="relu"), layers.Dense(WIDTH)])
            for _ in range(EXPERTS)
        ]
        self.router = Router(tokens_per_batch // EXPERTS)

    def call(self, inputs):
        tokens = ops.reshape(inputs, (-1, WIDTH))
        dispatch, combine = self.router(tokens)
        sent = ops.einsum("tec,td->ecd", dispatch, tokens)
        answers = [expert(sent[i]) for i, expert in enumerate(self.experts)]
        back = ops.einsum("tec,ecd->td", combine, ops.stack(answers))
        return ops.reshape(back, (-1, TOKENS, WIDTH))


def train(scope, callbacks):
    tokens, labels = data.sentences(length=TOKENS)
    inputs = keras.Input((TOKENS,))
    x = layers.Embedding(20, WIDTH)(inputs)
    attended = layers.MultiHeadAttention(2, WIDTH)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, attended]))
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, Switch(16 * TOKENS)(x)]))
    x = layers.Dropout(0.25)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(tokens, labels, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
