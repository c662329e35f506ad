"""A training loop from scratch on JAX: stateless, with metrics and a validation of its own.

As in the guide, `value_and_grad` is applied once, outside of the step.
"""

from __future__ import annotations

import jax
import keras

from programs import data
from programs.program import Trained

EPOCHS = 2


def classifier():
    inputs = keras.Input((64,), name="digits")
    x = keras.layers.Dense(16, activation="relu")(inputs)
    x = keras.layers.Dense(16, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(4, name="predictions")(x))


def train(scope, callbacks):
    images, labels = data.digits()
    images = images.reshape(-1, 64)
    model = classifier()
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    validation = keras.metrics.SparseCategoricalAccuracy()

    def loss_and_updates(trainable, non_trainable, metric, x, y):
        logits, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
        metric = accuracy.stateless_update_state(metric, y, logits)
        return loss_of(y, logits), (non_trainable, metric)

    loss_and_gradients = jax.value_and_grad(loss_and_updates, has_aux=True)

    @scope.step
    @jax.jit
    def train_step(state, x, y):
        trainable, non_trainable, optimizer_variables, metric = state
        (loss, (non_trainable, metric)), gradients = loss_and_gradients(
            trainable, non_trainable, metric, x, y
        )
        trainable, optimizer_variables = optimizer.stateless_apply(optimizer_variables, gradients, trainable)
        return loss, (trainable, non_trainable, optimizer_variables, metric)

    @jax.jit
    def test_step(trainable, non_trainable, metric, x, y):
        logits, _ = model.stateless_call(trainable, non_trainable, x, training=False)
        return validation.stateless_update_state(metric, y, logits)

    history = []
    state = (
        [one.value for one in model.trainable_variables], [one.value for one in model.non_trainable_variables],
        [one.value for one in optimizer.variables], [one.value for one in accuracy.variables],
    )  # fmt: skip
    with scope.attach(model, optimizer=optimizer):
        for _ in range(EPOCHS):
            for x, y in data.batches(images, labels):
                loss, state = train_step(state, x, y)
                history.append(float(loss))
            trainable, non_trainable, optimizer_variables, metric = state
            history.append(float(accuracy.stateless_result(metric)))
            metric = [one.value for one in accuracy.variables]
            seen = [one.value for one in validation.variables]
            for x, y in data.batches(images[:32], labels[:32]):
                seen = test_step(trainable, non_trainable, seen, x, y)
            history.append(float(validation.stateless_result(seen)))
            state = trainable, non_trainable, optimizer_variables, metric
            scope.epoch_end()
    for variable, value in zip(model.trainable_variables, state[0], strict=True):
        variable.assign(value)
    return Trained(model, history, arrays=[*state[1], *state[2]])
