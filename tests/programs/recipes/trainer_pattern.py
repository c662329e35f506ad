"""The trainer pattern: a model that wraps the one it trains, so that any model can have this train step."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained

BACKEND = keras.backend.backend()


class Trainer(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.mean_loss = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        return [self.mean_loss, self.accuracy]

    def call(self, x, training=False):
        return self.model(x, training=training)

    def results(self, loss, y, found):
        self.mean_loss.update_state(loss)
        self.accuracy.update_state(y, found)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, batch):
        x, y = batch
        weights = self.model.trainable_weights
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                found = self.model(x, training=True)
                loss = self.loss_fn(y, found)
            gradients = tape.gradient(loss, weights)
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        else:
            import torch

            self.zero_grad()
            found = self.model(x, training=True)
            loss = self.loss_fn(y, found)
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([one.value.grad for one in weights], weights)
        return self.results(loss, y, found)

    def test_step(self, batch):
        x, y = batch
        found = self.model(x, training=False)
        return self.results(self.loss_fn(y, found), y, found)


def train(scope, callbacks):
    images, labels = data.digits()
    inner = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(2.0, offset=-1.0),
            layers.Conv2D(6, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(4),
        ]
    )
    trainer = Trainer(inner)
    trainer.compile(optimizer=keras.optimizers.Adam())
    history = trainer.fit(
        images, labels, batch_size=16, epochs=2, validation_data=(images[:16], labels[:16]), verbose=0,
        callbacks=callbacks,
    )  # fmt: skip
    return Trained(trainer, history.history)
