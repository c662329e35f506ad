"""A replay gives what the training gave in every mode of `fit`: a later epoch after a validation, eager, compiled, mixed precision.

Each mode trains twice: once without a scope and stopped after the step, by a step of Keras alone, and once with a black box until it
dies. The replay must give the loss, the weights and the weight gradients of the first, bit for bit.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import fitscope as fs
from conformance.test_black_box import BACKEND, BATCH, LOSS, Noting, Raising, data, equal

EPOCH = 6  #: steps of an epoch
STEP = 9  #: in the second epoch, after a validation

MODES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "run_eagerly": {"run_eagerly": True},
    "jit_compile": {"jit_compile": True},
    "steps_per_execution": {"steps_per_execution": 2},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
    "mixed_float16": {"dtype": "mixed_float16"},
}


def modes() -> list[str]:
    """On torch Keras runs one step per call and ignores `steps_per_execution`."""
    return [name for name in MODES if BACKEND != "torch" or name != "steps_per_execution"]


def make(dtype: str = "float32", **compile_: Any) -> keras.Model:
    """State that is not trained, random numbers, and a type for the whole model."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((5,))
    for layer in (
        keras.layers.Dense(6, name="first", activation="relu", dtype=dtype),
        keras.layers.BatchNormalization(name="norm", dtype=dtype),
        keras.layers.Dropout(0.4, name="drop", dtype=dtype),
        keras.layers.Dense(2, name="last", dtype=dtype),
    ):
        x = layer(x)
    model = keras.Model(inputs, x)
    optimizer: Any = Noting(0.05, momentum=0.9)
    if dtype == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=1024.0, dynamic_growth_steps=3
        )
    model.compile(optimizer, "mse", metrics=["mae"], **compile_)
    return model


class Stops(keras.callbacks.Callback):
    """Ends the training after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left = self.left - 1
        self.model.stop_training = self.left < 0


def fit(model: keras.Model, *callbacks: Any) -> dict[str, list[float]]:
    x, y = data(EPOCH)
    held_out = data(3)
    return model.fit(
        x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, validation_data=held_out, callbacks=[*callbacks]
    ).history  # fmt: skip


def plain(mode: dict[str, Any]) -> SimpleNamespace:
    """The training without a scope, stopped after `STEP`."""
    model = make(**mode)
    calls = STEP // mode.get("steps_per_execution", 1)
    history = fit(model, Stops(calls))
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return SimpleNamespace(
        model=model,
        loss=history["loss"][-1],
        weights={w.path: keras.ops.convert_to_numpy(w) for w in model.weights},
        gradients={
            w.path: keras.ops.convert_to_numpy(g)
            for w, g in zip(model.trainable_weights, inner.noted, strict=True)
        },
    )


@pytest.mark.parametrize("name", modes())
def test_a_replay_is_the_step_of_the_training_in_every_mode(name: str, tmp_path: Any) -> None:
    mode = MODES[name]
    last = STEP % EPOCH
    scope = fs.Scope(tmp_path, **LOSS, black_box=4)
    with pytest.raises(ValueError, match="enough"):
        fit(make(**mode), scope, InEpoch(1, last, ValueError("enough")))
    scope.close()
    run = fs.open(tmp_path)
    assert run.errors == []

    replay = run.replay(STEP)

    expected = plain(mode)
    assert replay.agrees is True, replay.notes
    assert float(replay.logs["loss"]) == expected.loss
    shared = [path for path in expected.weights if path in replay.after]
    assert len(shared) == 8
    assert equal([replay.after[path] for path in shared], [expected.weights[path] for path in shared])
    scale = 1.0 if name != "mixed_float16" else scale_of(replay)
    for path, gradient in expected.gradients.items():
        found = replay[f"weight_gradients/{path}"]
        assert found.dtype == gradient.dtype
        np.testing.assert_array_equal(found / scale, gradient, err_msg=path)


def scale_of(replay: Any) -> float:
    """A gradient is recorded as the backward pass has it: multiplied by the loss scale before the step."""
    return float(keras.ops.convert_to_numpy(replay.model.optimizer.dynamic_scale))


class InEpoch(Raising):
    """Raises after a batch of one epoch."""

    def __init__(self, epoch: int, batch: int, error: BaseException) -> None:
        super().__init__(batch, error)
        self.epoch, self.now = epoch, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.now = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.now == self.epoch:
            super().on_train_batch_end(batch, logs)
