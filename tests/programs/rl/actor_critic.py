"""Actor and critic on a cart: one step is a whole episode, with the model called at each of its moments."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from programs.program import Trained
from programs.rl.world import Cart

EPISODES, MOMENTS, GAMMA = 4, 8, 0.99
BACKEND = keras.backend.backend()


def play(model, huber, cart, rng):
    """Plays an episode; its loss and its reward."""
    state, values, choices, rewards = cart.reset(), [], [], []
    for _ in range(MOMENTS):
        probabilities, value = model(ops.expand_dims(ops.convert_to_tensor(state), 0))
        shares = np.squeeze(ops.convert_to_numpy(probabilities)).astype("float64")
        action = int(rng.choice(2, p=shares / shares.sum()))
        values.append(value[0, 0])
        choices.append(ops.log(probabilities[0, action]))
        state, reward, done = cart.step(action)
        rewards.append(reward)
        if done:
            break
    returns, total = [], 0.0
    for reward in rewards[::-1]:
        total = reward + GAMMA * total
        returns.insert(0, total)
    returns = (np.array(returns) - np.mean(returns)) / (np.std(returns) + 1e-6)
    losses = []
    for choice, value, wanted in zip(choices, values, returns.astype("float32"), strict=True):
        losses.append(-choice * (wanted - value))
        losses.append(huber(ops.expand_dims(value, 0), ops.expand_dims(ops.convert_to_tensor(wanted), 0)))
    return sum(losses), sum(rewards)


def train(scope, callbacks):
    inputs = keras.Input((4,))
    common = layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(2, activation="softmax")(common), layers.Dense(1)(common)])
    optimizer = keras.optimizers.Adam(0.01)
    huber = keras.losses.Huber()
    cart, rng = Cart(1), np.random.default_rng(1)

    def episode_tensorflow():
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss, reward = play(model, huber, cart, rng)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, reward

    def episode_torch():
        import torch

        loss, reward = play(model, huber, cart, rng)
        model.zero_grad()
        loss.backward()
        weights = model.trainable_variables
        with torch.no_grad():
            optimizer.apply([one.value.grad for one in weights], weights)
        return loss, reward

    episode = scope.step(episode_tensorflow if BACKEND == "tensorflow" else episode_torch)
    history, running = [], 0.0
    with scope.attach(model, optimizer=optimizer):
        for _ in range(EPISODES):
            loss, reward = episode()
            running = 0.05 * reward + 0.95 * running
            history.append([float(ops.convert_to_numpy(loss)), running])
    return Trained(model, history, optimizers=(optimizer,))
