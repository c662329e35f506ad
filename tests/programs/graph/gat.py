"""Node classification with graph attention: the graph is a constant of the model, and the inputs are only which nodes."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs.program import Trained

NODES, CLASSES = 24, 3


class Attention(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(
            shape=(shape[0][-1], self.units), initializer="glorot_uniform", regularizer=keras.regularizers.L2(1e-4), name="kernel"
        )  # fmt: skip
        self.scores = self.add_weight(shape=(2 * self.units, 1), initializer="glorot_uniform", name="scores")

    def call(self, inputs):
        states, edges = inputs
        z = ops.matmul(states, self.kernel)
        targets, sources = edges[:, 0], edges[:, 1]
        pairs = ops.concatenate([ops.take(z, targets, axis=0), ops.take(z, sources, axis=0)], axis=-1)
        scores = ops.squeeze(ops.leaky_relu(ops.matmul(pairs, self.scores)), -1)
        scores = ops.exp(ops.clip(scores, -2, 2))
        sums = ops.segment_sum(scores, targets, num_segments=NODES)
        shares = scores / ops.maximum(ops.take(sums, targets, axis=0), 1e-8)
        messages = ops.take(z, sources, axis=0) * ops.expand_dims(shares, -1)
        return ops.segment_sum(messages, targets, num_segments=NODES)


class Heads(layers.Layer):
    def __init__(self, units, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = [Attention(units) for _ in range(heads)]

    def call(self, inputs):
        return ops.relu(ops.concatenate([head(inputs) for head in self.heads], axis=-1))


class Network(keras.Model):
    def __init__(self, states, edges):
        super().__init__()
        self.states, self.edges = states, edges
        self.prepare = layers.Dense(8, activation="relu")
        self.attention = [Heads(4, 2) for _ in range(2)]
        self.answer = layers.Dense(CLASSES)

    def call(self, nodes):
        x = self.prepare(self.states)
        for layer in self.attention:
            x = layer([x, self.edges]) + x
        return ops.take(self.answer(x), nodes, axis=0)


def train(scope, callbacks):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, CLASSES, NODES)
    states = rng.normal(size=(NODES, 6)).astype("float32") + labels[:, None]
    edges = rng.integers(0, NODES, size=(60, 2)).astype("int32")
    model = Network(ops.convert_to_tensor(states), ops.convert_to_tensor(edges))
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
    )
    nodes = np.arange(NODES).astype("int32")
    stop = keras.callbacks.EarlyStopping("val_acc", mode="max", patience=3, restore_best_weights=True)
    history = model.fit(
        nodes, labels, validation_split=0.25, batch_size=6, epochs=2, verbose=0, callbacks=[*callbacks, stop]
    )
    return Trained(model, history.history)
