"""What the tests of legacy Keras with eager execution share. In a process of its own, in which `tf.keras` is legacy Keras."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_USE_LEGACY_KERAS"] = "1"

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tf_keras import layers

import fitscope as fs

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
# Two devices, so that there can be two replicas.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
BOTH = {"keep": "both"}


def everything() -> list[Any]:
    return [
        fs.activations(**BOTH), fs.gradients(**BOTH), fs.weights(**BOTH), fs.weight_gradients(**BOTH), fs.updates(**BOTH),
        fs.loss(), fs.inputs(**BOTH), fs.targets(**BOTH), fs.predictions(**BOTH),
    ]  # fmt: skip


def small(dropout: float = 0.5, optimizer: Any = "sgd", **compile_: Any) -> Any:
    tf_keras.utils.set_random_seed(0)
    stack = [
        layers.InputLayer((5,)), layers.Dense(8, activation="relu", name="first"), layers.BatchNormalization(name="norm"),
    ]  # fmt: skip
    stack += [layers.Dropout(dropout, name="drop")] if dropout else []
    model = tf_keras.Sequential([*stack, layers.Dense(3, activation="softmax", name="last")])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **compile_)
    return model


@pytest.fixture
def xy() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(24, 5)).astype("float32"), rng.integers(0, 3, 24)


@pytest.fixture
def watch_fit(tmp_path) -> Callable[..., SimpleNamespace]:
    """Trains twice from the same seed, with and without a scope, and asserts that it made no difference at all."""

    def fit(
        make: Any,
        x: Any,
        y: Any = None,
        *,
        watch: Any = None,
        every: Any = 1,
        on: Any = "train",
        **settings: Any,
    ) -> Any:
        settings = {"verbose": 0, **({} if callable(x) else {"batch_size": 8, "shuffle": False}), **settings}
        plain = make()
        history = plain.fit(x() if callable(x) else x, y, **settings).history
        model = make()
        scope = fs.Scope(tmp_path / "runs", everything() if watch is None else watch, every, on=on)
        seen: list[Any] = []

        class Look(tf_keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                seen.append(self.model.get_weights())

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                seen[-1] = (seen[-1], self.model.get_weights())

        mine = model.fit(x() if callable(x) else x, y, callbacks=[scope.legacy(), Look()], **settings).history
        assert mine == history
        for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        run = fs.open(tmp_path / "runs")
        assert run.status == "complete"
        assert run.errors == []
        return SimpleNamespace(run=run, model=model, scope=scope, seen=seen, history=history)

    return fit


@pytest.fixture
def tools() -> SimpleNamespace:
    return SimpleNamespace(everything=everything, small=small)
