"""Graph convolutions that prepare, aggregate and update with networks of their own, trained by an own train step."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs.program import Trained

NODES, CLASSES, WIDTH = 24, 3, 6
BACKEND = keras.backend.backend()


def ffn(name):
    return keras.Sequential(
        [layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(WIDTH, activation="gelu")], name=name
    )


class Convolution(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.prepare, self.update = ffn("prepare"), ffn("update")

    def build(self, shape):
        self.prepare.build((None, WIDTH))
        self.update.build((None, 2 * WIDTH))

    def call(self, states, edges, training=None):
        messages = self.prepare(ops.take(states, edges[1], axis=0), training=training)
        gathered = ops.segment_sum(messages, edges[0], num_segments=NODES)
        after = self.update(ops.concatenate([states, gathered], axis=1), training=training)
        return ops.normalize(after, axis=-1, order=2)


class Network(keras.Model):
    def __init__(self, features, edges):
        super().__init__()
        self.features, self.edges = features, edges
        self.before, self.after = ffn("before"), ffn("after")
        self.first, self.second = Convolution(), Convolution()
        self.logits = layers.Dense(CLASSES)

    def call(self, nodes, training=None):
        x = self.before(self.features, training=training)
        x = self.first(x, self.edges, training=training) + x
        x = self.second(x, self.edges, training=training) + x
        return self.logits(ops.take(self.after(x, training=training), nodes, axis=0))


class TensorFlowNetwork(Network):
    def train_step(self, batch):
        import tensorflow as tf

        nodes, labels = batch
        with tf.GradientTape() as tape:
            found = self(nodes, training=True)
            loss = self.compute_loss(y=labels, y_pred=found)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return self.seen(loss, labels, found)

    def seen(self, loss, labels, found):
        for metric in self.metrics:
            metric.update_state(*((loss,) if metric.name == "loss" else (labels, found)))
        return {metric.name: metric.result() for metric in self.metrics}


class TorchNetwork(TensorFlowNetwork):
    def train_step(self, batch):
        import torch

        nodes, labels = batch
        self.zero_grad()
        found = self(nodes, training=True)
        loss = self.compute_loss(y=labels, y_pred=found)
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([one.value.grad for one in weights], weights)
        return self.seen(loss, labels, found)


def train(scope, callbacks):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, CLASSES, NODES)
    features = rng.normal(size=(NODES, WIDTH)).astype("float32") + labels[:, None]
    edges = rng.integers(0, NODES, size=(2, 60)).astype("int32")
    kind = {"tensorflow": TensorFlowNetwork, "torch": TorchNetwork, "jax": Network}[BACKEND]
    model = kind(ops.convert_to_tensor(features), ops.convert_to_tensor(edges))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(
        np.arange(NODES).astype("int32"), labels, batch_size=6, epochs=2, verbose=0, callbacks=callbacks
    )
    return Trained(model, history.history)
