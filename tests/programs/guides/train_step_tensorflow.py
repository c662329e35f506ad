"""Own train and test steps on TensorFlow: everything by hand, and `compile` only for the optimizer."""

from __future__ import annotations

import keras
import tensorflow as tf

from programs import data
from programs.program import Trained


class OwnSteps(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mean_loss = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")
        self.error = keras.losses.MeanSquaredError()

    @property
    def metrics(self):
        return [self.mean_loss, self.mae]

    def results(self, loss, y, predicted, weight):
        self.mean_loss.update_state(loss)
        self.mae.update_state(y, predicted, sample_weight=weight)
        return {"loss": self.mean_loss.result(), "mae": self.mae.result()}

    def train_step(self, batch):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.error(y, predicted, sample_weight=weight)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return self.results(loss, y, predicted, weight)

    def test_step(self, batch):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        predicted = self(x, training=False)
        return self.results(self.error(y, predicted, sample_weight=weight), y, predicted, weight)


def train(scope, callbacks):
    x, y = data.table()
    inputs = keras.Input((8,))
    hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(16, activation="relu")(inputs))
    model = OwnSteps(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    weights = abs(x[:, 0])
    history = model.fit(
        x, y, batch_size=8, epochs=2, sample_weight=weights, validation_data=(x[:16], y[:16]), verbose=0,
        callbacks=callbacks,
    )  # fmt: skip
    return Trained(model, history.history)
