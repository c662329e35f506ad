"""A training loop on four devices: replicated weights, batches split along their first axis, and a jitted step."""

from __future__ import annotations

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from programs import data
from programs.program import Trained


def classifier():
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(6, 3, use_bias=False)(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(scale=False)(x))
    x = keras.layers.Dropout(0.5)(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def train(scope, callbacks):
    images, labels = data.digits()
    model = classifier()
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def compute_loss(trainable, non_trainable, x, y):
        logits, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
        return loss_of(y, logits), non_trainable

    compute_gradients = jax.value_and_grad(compute_loss, has_aux=True)

    @scope.step
    @jax.jit
    def train_step(state, x, y):
        trainable, non_trainable, moments = state
        (loss, non_trainable), gradients = compute_gradients(trainable, non_trainable, x, y)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return loss, (trainable, non_trainable, moments)

    devices = np.array(jax.local_devices())
    assert len(devices) == 4
    everywhere = NamedSharding(Mesh(devices, ("_",)), P())
    split = NamedSharding(Mesh(devices, ("batch",)), P("batch"))
    parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state = tuple(jax.device_put([one.value for one in part], everywhere) for part in parts)
    history = []
    with scope.attach(model, optimizer=optimizer):
        for _ in range(2):
            for x, y in data.batches(images, labels):
                loss, state = train_step(state, jax.device_put(x, split), jax.device_put(y, split))
                history.append(float(loss))
            scope.epoch_end()
    for variable, value in zip(model.trainable_variables, state[0], strict=True):
        variable.assign(value)
    return Trained(model, history, arrays=[*state[1], *state[2]])
