"""Own train and test steps on JAX: everything by hand, and `compile` only for the optimizer."""

from __future__ import annotations

import jax
import keras

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

    def loss_and_state(self, trainable, non_trainable, x, y, weight, training=False):
        predicted, non_trainable = self.stateless_call(trainable, non_trainable, x, training=training)
        return self.error(y, predicted, sample_weight=weight), (predicted, non_trainable)

    def updated(self, metrics_variables, loss, y, predicted, weight):
        first = len(self.mean_loss.variables)
        of_loss = self.mean_loss.stateless_update_state(metrics_variables[:first], loss)
        of_mae = self.mae.stateless_update_state(
            metrics_variables[first:], y, predicted, sample_weight=weight
        )
        logs = {"loss": self.mean_loss.stateless_result(of_loss), "mae": self.mae.stateless_result(of_mae)}
        return logs, of_loss + of_mae

    def train_step(self, state, batch):
        trainable, non_trainable, optimizer_variables, metrics_variables = state
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        compute = jax.value_and_grad(self.loss_and_state, has_aux=True)
        (loss, (predicted, non_trainable)), gradients = compute(
            trainable, non_trainable, x, y, weight, training=True
        )
        trainable, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, gradients, trainable
        )
        logs, metrics_variables = self.updated(metrics_variables, loss, y, predicted, weight)
        return logs, (trainable, non_trainable, optimizer_variables, metrics_variables)

    def test_step(self, state, batch):
        trainable, non_trainable, metrics_variables = state
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        loss, (predicted, non_trainable) = self.loss_and_state(trainable, non_trainable, x, y, weight)
        logs, metrics_variables = self.updated(metrics_variables, loss, y, predicted, weight)
        return logs, (trainable, non_trainable, metrics_variables)


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
