"""The loss of every batch is in the run, captured or not: derived from Keras's logs, with a bound on its error that holds.

The reference is the same training in NumPy, in float64.
"""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest

import fitscope as fs
from complete import captured
from fitscope.plan.budget import Budget

BACKEND = keras.backend.backend()
RATE, BATCH = 0.01, 8


def data(steps: int, odd: int | None = None, rest: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """So many batches of which one is corrupted, and one of `rest` samples."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * BATCH + rest, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32") + rng.normal(size=(len(x), 1)).astype(
        "float32"
    )
    if odd is not None:
        y[odd * BATCH : (odd + 1) * BATCH] *= 100
    return x, y.astype("float32")


def by_hand(x: np.ndarray, y: np.ndarray, epochs: int = 1) -> np.ndarray:
    """The loss of each batch of plain gradient descent."""
    w, b, losses = np.zeros((4, 1)), np.zeros(1), []
    for first in list(range(0, len(x), BATCH)) * epochs:
        inputs, targets = (
            x[first : first + BATCH].astype("float64"),
            y[first : first + BATCH].astype("float64"),
        )
        apart = inputs @ w + b - targets
        losses.append((apart**2).mean())
        w = w - RATE * 2 * inputs.T @ apart / len(inputs)
        b = b - RATE * 2 * apart.mean(0)
    return np.array(losses)


def step_of(kind: str) -> type[keras.Model]:
    """A model with a training step of its own, which logs the loss in one way or another."""

    def logged(model, loss):
        if kind == "batch":
            return {"loss": loss}
        if kind == "twice":
            return {"loss": 2.0 * loss}
        model.own_loss.update_state(loss)
        return {"loss": model.own_loss.result()}

    class Tensorflow(keras.Model):
        def train_step(self, data):
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return logged(self, loss)

    class Torch(keras.Model):
        def train_step(self, data):
            import torch

            x, y = data
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            with torch.no_grad():
                weights = self.trainable_weights
                self.optimizer.apply([weight.value.grad for weight in weights], weights)
            return logged(self, loss.detach())

    class Jax(keras.Model):
        def compute(self, trainable, fixed, x, y):
            predicted, fixed = self.stateless_call(trainable, fixed, x, training=True)
            return self.compute_loss(x, y, predicted), fixed

        def train_step(self, state, data):
            import jax

            trainable, fixed, of_optimizer, metrics = state
            x, y = data
            compute = jax.value_and_grad(self.compute, has_aux=True)
            (loss, fixed), gradients = compute(trainable, fixed, x, y)
            trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
            with keras.StatelessScope(list(zip(self.metrics_variables, metrics, strict=True))) as scope:
                logs = logged(self, loss)
            metrics = [scope.get_current_value(variable) for variable in self.metrics_variables]
            return logs, (trainable, fixed, of_optimizer, metrics)

    return {"tensorflow": Tensorflow, "torch": Torch, "jax": Jax}[BACKEND]


def model(kind: str | None = None, **compile_) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1, kernel_initializer="zeros", name="dense")(inputs)
    net = (keras.Model if kind is None else step_of(kind))(inputs, outputs)
    if kind == "mean":
        net.own_loss = keras.metrics.Mean(name="loss")
    net.compile(keras.optimizers.SGD(RATE), "mse", **compile_)
    return net


FIT = {"batch_size": BATCH, "shuffle": False, "verbose": 0}


def assert_holds(frame, wanted: np.ndarray) -> None:
    """Every value lies within its bound. What Keras rounds in a step is no fault of the derivation."""
    rounding = 1e-5 * wanted + 1e-6
    error = frame["error"].fillna(0.0).to_numpy()
    np.testing.assert_array_less(np.abs(frame["value"].to_numpy() - wanted), error + rounding)


def test_an_odd_batch_that_is_not_captured_is_seen_at_its_step(tmp_path):
    x, y = data(2000, odd=1234)
    scope = fs.Scope(tmp_path, every=500)
    model().fit(x, y, callbacks=[scope], **FIT)
    run = fs.open(scope.path)
    frame, wanted = run.frame("loss"), by_hand(x, y)
    assert frame.index.tolist() == list(range(2000))
    assert frame["value"].idxmax() == 1234
    assert frame.index[frame["error"].isna()].tolist() == [0, 500, 1000, 1500]
    assert (frame["over"].dropna() == 1).all()
    assert_holds(frame, wanted)
    exact = frame["error"].fillna(0.0) < 1e-3 * frame["value"]
    assert exact[:1234].mean() > 0.95, "the usual value is as exact as one could wish"
    assert exact[1234]
    np.testing.assert_allclose(frame["value"][exact], wanted[exact], rtol=1.1e-3)
    assert run.errors == []


def test_batch_losses_are_right_with_a_smaller_last_batch_and_several_epochs(tmp_path):
    x, y = data(5, rest=3)
    scope = fs.Scope(tmp_path, fs.weights(), every=4)
    net = model()
    net.fit(x, y, epochs=3, callbacks=[scope], **FIT)
    net.fit(x, y, epochs=1, callbacks=[scope], **FIT)
    frame = fs.open(scope.path).frame("loss")
    assert frame.index.tolist() == list(range(24))
    assert frame["batch"].tolist() == [*range(6)] * 4
    assert frame["epoch"].tolist() == [0] * 6 + [1] * 6 + [2] * 6 + [0] * 6
    assert_holds(frame, by_hand(x, y, 4))
    assert (frame["error"] < 1e-4).all()


@pytest.mark.skipif(BACKEND == "torch", reason="Keras runs one step at a time on torch")
def test_several_steps_in_one_execution_share_their_mean_loss(tmp_path):
    x, y = data(2001, odd=1234)
    scope = fs.Scope(tmp_path, every=1000)
    model(steps_per_execution=4).fit(x, y, callbacks=[scope], **FIT)
    frame, wanted = fs.open(scope.path).frame("loss"), by_hand(x, y)
    assert frame.index.tolist() == list(range(2001))
    seen = frame["error"].isna()
    assert frame.index[seen].tolist() == [0, 1000, 2000]
    assert set(frame["over"].dropna()[:2000]) == {4}
    means = np.repeat(wanted[:2000].reshape(-1, 4).mean(1), 4)
    assert_holds(frame[:2000], np.where(seen[:2000], wanted[:2000], means))
    assert sorted(frame["value"].nlargest(4).index) == [1232, 1233, 1234, 1235]


@pytest.mark.parametrize("kind", ["mean", "batch"])
def test_captured_steps_decide_how_a_custom_step_logs(tmp_path, kind):
    x, y = data(2000, odd=1234)
    scope = fs.Scope(tmp_path, every=300)
    model(kind).fit(x, y, callbacks=[scope], **FIT)
    frame = fs.open(scope.path).frame("loss")
    assert frame.index.tolist() == list(range(2000))
    assert frame["value"].idxmax() == 1234
    assert_holds(frame, by_hand(x, y))
    assert (frame["error"].loc[:1233].dropna() < 0.05).all()


def test_a_log_that_is_not_the_loss_is_not_taken_for_it(tmp_path):
    x, y = data(40)
    scope = fs.Scope(tmp_path, every=10)
    model("twice").fit(x, y, callbacks=[scope], **FIT)
    frame = fs.open(scope.path).frame("loss")
    assert frame.index.tolist() == [0, 10, 20, 30]
    assert "error" not in frame


def test_nan_is_seen_at_its_step(tmp_path):
    x, y = data(100)
    y[70 * BATCH] = np.nan
    scope = fs.Scope(tmp_path, every=60)
    model().fit(x, y, callbacks=[scope], **FIT)
    frame = fs.open(scope.path).frame("loss")
    assert frame.index.tolist() == list(range(100))
    assert frame["value"][:70].notna().all()
    assert frame["nans"][70] == 1
    assert frame["error"][70] == 0
    assert frame["value"][71:].isna().all()
    assert np.isinf(frame["error"][71:]).all(), "of what comes after it nothing is known"
    assert (frame["count"][71:] == 0).all()


def test_the_next_steps_are_captured_after_a_spike(tmp_path, monkeypatch):
    monkeypatch.setattr(Budget, "_decide", lambda self, step: None)  # so that only what happens is decided
    scope = fs.Scope(tmp_path)

    class Waits(keras.callbacks.Callback):
        """Lets the writer see the spike before the training goes on."""

        def on_train_batch_end(self, batch, logs=None):
            budget = scope._recordings.newest.recorder.costs.budget
            if batch == 50:
                budget.cost = 0.0
                budget._set(150, 50)
            for _ in range(500 if batch == 234 else 0):
                time.sleep(0.02)
                if budget._odd is not None:
                    break

    x, y = data(400, odd=234)
    model().fit(x, y, callbacks=[scope, Waits()], **FIT)
    run = fs.open(scope.path)
    closer = run.overhead["budget"]["closer"][0]
    assert closer == {"step": 234, "from": 235, "to": 255}
    assert [step for step in captured(run) if 150 < step < 255] == list(range(235, 255))
    assert run.frame("loss").index.tolist() == list(range(400))
