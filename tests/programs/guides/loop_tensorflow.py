"""A training loop from scratch on TensorFlow: a `tf.function`, metrics, losses that layers add, and a validation of its own."""

from __future__ import annotations

import keras
import tensorflow as tf

from programs import data
from programs.program import Trained

EPOCHS = 2


class Sparse(keras.layers.Layer):
    """Adds a loss for large activations."""

    def call(self, inputs):
        self.add_loss(1e-3 * tf.reduce_sum(inputs))
        return inputs


def classifier():
    inputs = keras.Input((64,), name="digits")
    x = Sparse()(keras.layers.Dense(16, activation="relu")(inputs))
    x = keras.layers.Dense(16, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(4, name="predictions")(x))


def train(scope, callbacks):
    images, labels = data.digits()
    images = images.reshape(-1, 64)
    model = classifier()
    optimizer = keras.optimizers.Adam(0.01)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    validation = keras.metrics.SparseCategoricalAccuracy()
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(48, seed=3).batch(16)

    @scope.step
    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits)
            loss += sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        accuracy.update_state(y, logits)
        return loss

    @tf.function
    def test_step(x, y):
        validation.update_state(y, model(x, training=False))

    history = []
    with scope.attach(model, optimizer=optimizer):
        for _ in range(EPOCHS):
            for x, y in batches:
                history.append(float(train_step(x, y)))
            history.append(float(accuracy.result()))
            accuracy.reset_state()
            for x, y in data.batches(images[:32], labels[:32]):
                test_step(x, y)
            history.append(float(validation.result()))
            validation.reset_state()
            scope.epoch_end()
    return Trained(model, history, optimizers=(optimizer,))
