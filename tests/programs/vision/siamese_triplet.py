"""A Siamese network with a triplet loss: a half-frozen tower called three times, in a model whose own step has a loss per sample."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs import data
from programs.program import Trained

BACKEND = keras.backend.backend()


class Distances(layers.Layer):
    def call(self, anchor, positive, negative):
        return ops.sum(ops.square(anchor - positive), -1), ops.sum(ops.square(anchor - negative), -1)


def make_network():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, activation="relu", name="frozen")(inputs)
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(x))
    x = layers.BatchNormalization()(layers.Dense(8, activation="relu")(x))
    tower = keras.Model(inputs, layers.Dense(6)(x), name="tower")
    tower.get_layer("frozen").trainable = False
    three = [keras.Input((8, 8, 1), name=name) for name in ("anchor", "positive", "negative")]
    return keras.Model(three, Distances()(*[tower(one) for one in three]))


class Siamese(keras.Model):
    def __init__(self, network, margin=0.5):
        super().__init__()
        self.network = network
        self.margin = margin
        self.mean_loss = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.network(inputs)

    @property
    def metrics(self):
        return [self.mean_loss]

    def triplet(self, batch):
        near, far = self.network(batch)
        return ops.maximum(near - far + self.margin, 0.0)

    def train_step(self, batch):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.triplet(batch[0])
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}

    def test_step(self, batch):
        self.mean_loss.update_state(self.triplet(batch[0]))
        return {"loss": self.mean_loss.result()}


class Summed(Siamese):
    """torch differentiates numbers alone."""

    def train_step(self, batch):
        import torch

        loss = self.triplet(batch[0]).sum()
        self.zero_grad()
        loss.backward()
        weights = self.network.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([one.value.grad for one in weights], weights)
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


def train(scope, callbacks):
    images, labels = data.digits(n=48)
    rng = np.random.default_rng(3)
    positive = np.array([rng.choice(np.flatnonzero(labels == label)) for label in labels])
    negative = np.array([rng.choice(np.flatnonzero(labels != label)) for label in labels])
    triplets = (images, images[positive], images[negative])
    model = (Summed if BACKEND == "torch" else Siamese)(make_network())
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    held_out = tuple(part[:16] for part in triplets)
    history = model.fit(
        triplets,
        None,
        epochs=2,
        batch_size=16,
        validation_data=(held_out, None),
        verbose=0,
        callbacks=callbacks,
    )
    return Trained(model, history.history)
