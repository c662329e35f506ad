"""Trains on TensorFlow under `MirroredStrategy` with two replicas, on two logical CPUs, with a scope and without.

`python mirrored_program.py OUT` writes runs to OUT and prints one line of JSON: what its trainings ended with.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fitscope as fs
from multiprocess.reference import BATCH, RATE, first_weights, uneven

out = Path(sys.argv[1])
KINDS = (fs.activations, fs.gradients, fs.weights, fs.weight_gradients, fs.updates, fs.inputs, fs.targets)
WATCH = [*(kind() for kind in KINDS), *(kind(keep="tensor") for kind in KINDS), fs.loss(), fs.metrics()]
said: dict[str, Any] = {}


def digest(model: Any, history: Any) -> str:
    """Of every copy of every variable, and of the logs."""
    copies = [
        strategy.experimental_local_results(v.value) for v in model.variables + model.optimizer.variables
    ]
    values = [[copy.numpy().tobytes() for copy in each] for each in copies]
    return hashlib.sha256(repr((values, history)).encode()).hexdigest()


def both(name: str, train: Callable[[list[Any]], str], **scope: Any) -> None:
    """Trains without a scope and with one, which writes the run OUT/name."""
    said[name] = [train([])]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said[name].append(train([fs.Scope(out / name, **{"watch": WATCH, "every": 1, **scope})]))
    said[f"{name} warned"] = [
        str(one.message) for one in caught if isinstance(one.message, fs.FitscopeWarning)
    ]


def plain(callbacks: list[Any], last: int = 3, **mode: Any) -> str:
    """The training that `reference` computes by hand, with so many rows in the last batch."""
    with strategy.scope():
        layers = [keras.layers.Dense(8, activation="relu", name="h"), keras.layers.Dense(4, name="out")]
        model = keras.Sequential([keras.Input((6,)), *layers], name="net")
        model.compile(keras.optimizers.SGD(RATE), "mse", metrics=["mae"], **mode)
        model.set_weights(first_weights())
    x, y = uneven(last)
    fit = model.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks, validation_data=(x, y)
    )
    return digest(model, fit.history)


def deep(callbacks: list[Any]) -> str:
    """What replicas share: moments of a norm, dropout, a clipped norm, adaptive steps, a wide layer."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((6,))
        x = keras.layers.Dense(300, activation="relu", name="wide")(inputs)
        x = keras.layers.LayerNormalization(name="norm")(keras.layers.BatchNormalization(name="moments")(x))
        x = keras.layers.Dropout(0.5, name="drop")(x)
        one, two = (
            keras.layers.Dense(4, name="one")(x),
            keras.layers.Dense(1, activation="sigmoid", name="two")(x),
        )
        model = keras.Model(inputs, [one, two])
        losses = ["mse", "binary_crossentropy"]
        model.compile(keras.optimizers.Adam(clipnorm=0.1), losses, metrics=["mae", "accuracy"])
    x, y = uneven()
    targets = [y, np.float32(y[:, :1] > 0)]
    fit = model.fit(x, targets, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    model.evaluate(x, targets, batch_size=BATCH, verbose=0, callbacks=callbacks)
    predicted = model.predict(x, batch_size=BATCH, verbose=0, callbacks=callbacks)
    return digest(model, (fit.history, [part.tobytes() for part in predicted]))


class Own(keras.Model):
    """A model with its own step, which does not divide its loss: the strategy minimises the sum."""

    traced = 0  #: how often, on any replica

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(50, 300, name="table")
        self.head = keras.layers.Dense(2, name="head")

    def call(self, x: Any) -> Any:
        return self.head(fs.tap("pooled", keras.ops.mean(self.table(x), axis=1)))

    def train_step(self, data: Any) -> Any:
        Own.traced += 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data)))
        fs.tap("loss_here", loss)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def own(callbacks: list[Any]) -> str:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = Own()
        model.compile(keras.optimizers.SGD(0.1))
    ids = np.random.default_rng(3).integers(0, 50, (22, 5))
    history = model.fit(
        tf.data.Dataset.from_tensor_slices(ids).batch(8), verbose=0, callbacks=callbacks
    ).history
    return digest(model, history)


def loop(callbacks: list[Any]) -> str:
    """Steps that fitscope does not begin by a callback: one that Keras runs, and one that calls the strategy itself."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, name="out")])
        model.compile(keras.optimizers.SGD(RATE), "mse")
    x, y = uneven()

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.run(model.train_step, args=((x, y),))

    if not callbacks:
        model.train_on_batch(x[:4], y[:4])
        step(x[:4], y[:4])
        return digest(model, {})
    with callbacks[0].attach(model):
        model.train_on_batch(x[:4], y[:4])
    with fs.Scope(out / "custom", every=1) as custom:
        custom.step(step, model=model)(x[:4], y[:4])
    return digest(model, {})


cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
both("graph", plain, on=("train", "validation"))
both("eager", lambda callbacks: plain(callbacks, run_eagerly=True), on=("train", "validation"))
both("in step", lambda callbacks: plain(callbacks, run_eagerly=True, steps_per_execution=2), reduce="step")
both("twin", lambda callbacks: plain(callbacks, last=1), identity="twin")
both("deep", deep, watch=[*WATCH, fs.loss(per_sample=True), fs.changes(of="activations")])
local = fs.weight_gradients(keep="both", local=True)
both("own", own, watch=[*WATCH, fs.taps(), fs.taps(keep="tensor"), local], black_box=3)
said["traced"] = Own.traced
both("loop", loop)
print("RESULT", json.dumps(said), flush=True)
