"""Deep Q-learning: replayed memories, a target network that predicts and is copied now and then, a clipped optimizer."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs.program import Trained
from programs.rl.world import Cart

FRAMES, BATCH = 60, 8
BACKEND = keras.backend.backend()


def q_network():
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Lambda(lambda state: state * 2.0, output_shape=(4,)),
            layers.Dense(12, activation="relu"),
            layers.Dense(2, activation="linear"),
        ]
    )


def make_step(model, optimizer, huber):
    """One update, as each framework writes it. On JAX the state is carried from step to step."""

    def loss_of(values, states, masks, targets):
        return huber(targets, ops.sum(ops.multiply(values, masks), axis=1))

    if BACKEND == "tensorflow":
        import tensorflow as tf

        def update(states, masks, targets):
            with tf.GradientTape() as tape:
                loss = loss_of(model(states), states, masks, targets)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return update
    if BACKEND == "torch":
        import torch

        def update(states, masks, targets):
            loss = loss_of(model(states), states, masks, targets)
            model.zero_grad()
            loss.backward()
            weights = model.trainable_variables
            with torch.no_grad():
                optimizer.apply([one.value.grad for one in weights], weights)
            return loss

        return update
    import jax

    def loss_at(trainable, states, masks, targets):
        values, _ = model.stateless_call(trainable, [], states, training=True)
        return loss_of(values, states, masks, targets)

    @jax.jit
    def update(trainable, moments, states, masks, targets):
        loss, gradients = jax.value_and_grad(loss_at)(trainable, states, masks, targets)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return loss, trainable, moments

    return update


def train(scope, callbacks):
    model, target = q_network(), q_network()
    target.set_weights(model.get_weights())
    optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    update = scope.step(make_step(model, optimizer, keras.losses.Huber()))
    cart, rng, memory, history = Cart(2), np.random.default_rng(2), [], []
    state = cart.reset()
    with scope.attach(model, optimizer=optimizer):
        for frame in range(FRAMES):
            if rng.random() < 0.5:
                action = int(rng.integers(2))
            else:
                action = int(np.argmax(ops.convert_to_numpy(model(state[None], training=False))[0]))
            after, reward, done = cart.step(action)
            memory.append((state, action, after, reward, done))
            state = cart.reset() if done else after
            if frame % 8 == 7 and len(memory) > BATCH:
                states, actions, afters, rewards, dones = map(
                    np.array, zip(*(memory[i] for i in rng.integers(0, len(memory), BATCH)), strict=True)
                )
                future = target.predict(afters, verbose=0).max(1)
                wanted = (rewards + 0.99 * future) * (1 - dones) - dones
                masks = np.eye(2, dtype="float32")[actions]
                batch = [ops.convert_to_tensor(part.astype("float32")) for part in (states, masks, wanted)]
                if BACKEND == "jax":
                    trainable = [one.value for one in model.trainable_variables]
                    moments = [one.value for one in optimizer.variables]
                    loss, trainable, moments = update(trainable, moments, *batch)
                    for variable, value in zip(
                        [*model.trainable_variables, *optimizer.variables],
                        [*trainable, *moments],
                        strict=True,
                    ):
                        variable.assign(value)
                else:
                    loss = update(*batch)
                history.append(float(ops.convert_to_numpy(loss)))
            if frame % 20 == 19:
                target.set_weights(model.get_weights())
                scope.epoch_end()
    return Trained(model, history, optimizers=(optimizer,), others=(target,))
