"""The budget in real trainings: what it decided is in the run, the steps captured are those, and nothing is compiled again."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import captured
from fitscope.capture import identity
from fitscope.plan import budget
from fitscope.plan.budget import START, Budget

X = np.random.default_rng(0).normal(size=(640, 5)).astype("float32")
Y = X.sum(1, keepdims=True)


def model(**compiled):
    keras.utils.set_random_seed(0)
    made = keras.Sequential([layers.Input((5,)), layers.Dense(8, name="hidden"), layers.Dense(1, name="out")])
    made.compile("sgd", "mse", **compiled)
    return made


def fit(made, scope, epochs=2, callbacks=()):
    made.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[scope, *callbacks])  # 80 steps an epoch


class Dictated(keras.callbacks.Callback):
    """Has another cadence decided before certain steps."""

    def __init__(self, scope, at):
        super().__init__()
        self.scope, self.at, self.step = scope, at, 0

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step in self.at:
            self.scope._recordings.newest.recorder.costs.budget._set(self.at[self.step], self.step)
            self.scope._recordings.newest._quiet = range(
                0
            )  # it decides only after captured steps, when this is over


def ready(scope):
    """Waits for the writer's thread: before that nothing is timed."""
    while not scope._recordings.newest.recorder._transport.ready:
        time.sleep(0.01)


@pytest.fixture
def no_clock(monkeypatch):
    """A machine on which everything takes no time, so that only what is dictated is decided."""
    monkeypatch.setattr(Budget, "_decide", lambda self, step: None)


def due(decisions, steps):
    """The steps that are captured with these decisions."""
    every = {decision["step"]: decision["every"] for decision in decisions}
    found, now = [], START
    for step in range(steps):
        now = every.get(step, now)
        if step % now == 0:
            found.append(step)
    return found


@pytest.fixture(autouse=True)
def few_proofs(monkeypatch):
    """A step that is a proof is not measured, and so small a model has ten of them; here three."""
    monkeypatch.setattr(identity, "NUMBERS", 0)


@pytest.mark.parametrize("together", [1, 4])
def test_the_captured_steps_are_those_the_budget_chose(tmp_path, together, monkeypatch):
    monkeypatch.setattr(budget, "LOOK", 10**9)  # then none is left out to compare with
    if together > 1 and keras.backend.backend() == "torch":
        pytest.skip("Keras runs one step per execution on torch")
    scope = fs.Scope(tmp_path, allowance=0)
    fit(model(steps_per_execution=together), scope)
    run = fs.open(tmp_path)
    kept = run.overhead["budget"]
    assert (kept["share"], kept["least"]) == (0.02, 1000)
    assert kept["decisions"][0] == {"step": 0, "every": START}
    assert kept["every"] == kept["decisions"][-1]["every"]
    assert kept["cost"] is None or kept["cost"] >= 0
    assert captured(run) == due(kept["decisions"], 160)
    assert run.plan[0]["every"] == "within 2 % of the time"


def test_changing_the_cadence_compiles_nothing(tmp_path, no_clock):
    scope = fs.Scope(tmp_path, allowance=0)
    fit(model(), scope, callbacks=[Dictated(scope, {15: 1, 40: 7, 100: 50})])
    run = fs.open(tmp_path)
    assert captured(run) == due(run.overhead["budget"]["decisions"], 160)
    assert len(run.overhead["budget"]["decisions"]) == 4
    assert len(run.overhead["first_call_seconds"]) == 1


def test_every_overrides_the_budget(tmp_path):
    fit(model(), fs.Scope(tmp_path, every=40))
    run = fs.open(tmp_path)
    assert captured(run) == [0, 40, 80, 120]
    assert "budget" not in run.overhead


def test_a_watch_with_its_own_schedule_keeps_it(tmp_path, no_clock):
    fit(model(), fs.Scope(tmp_path, [fs.loss(every=fs.steps(3, 5)), fs.activations("hidden")], allowance=0))
    run = fs.open(tmp_path)
    assert captured(run) == [3, 5]
    assert list(run.series("activations/hidden", "mean").index) == list(range(0, 160, START))


def test_a_second_fit_keeps_the_measured_costs(tmp_path, no_clock):
    scope, made = fs.Scope(tmp_path, allowance=0), model()
    fit(made, scope, epochs=1, callbacks=[Dictated(scope, {1: 30})])
    fit(made, scope, epochs=1)
    assert captured(fs.open(tmp_path)) == [0, 30, 60, 90, 120, 150]
    other = model()
    fit(other, scope, epochs=1)
    assert scope._recordings.newest.recorder.costs.budget.every == START


def test_a_budget_that_cannot_be_kept_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "LEAST", 10)
    monkeypatch.setattr(budget, "LADDER", (1, 10))
    monkeypatch.setattr(Budget, "_usual", lambda self: budget.Time(1e-9, 1e-9))  # plain steps take no time
    scope = fs.Scope(tmp_path, allowance=0)
    wait = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ready(scope))
    with pytest.warns(fs.FitscopeWarning, match="cannot keep its budget: a captured step costs as much as"):
        fit(model(), scope, callbacks=[wait])
    run = fs.open(tmp_path)
    assert "Watch less" in run.overhead["budget"]["trouble"]
    assert captured(run) == list(range(0, 160, 10))


def test_a_reference_step_does_not_count_as_plain(tmp_path, no_clock, monkeypatch):
    told, original = [], Budget.next

    def listening(self, step, steps, captured, tapped):
        told.append((step, captured, tapped))
        return original(self, step, steps, captured, tapped)

    monkeypatch.setattr(Budget, "next", listening)
    fit(model(), fs.Scope(tmp_path, [fs.changes("hidden"), fs.loss(every=1)], allowance=0), epochs=1)
    looked_at = [(step, captured) for step, captured, tapped in told if tapped]
    before = [(step - 1, 0) for step in range(10, 80, 10)]
    assert looked_at == sorted([(step, 1) for step in range(0, 80, 10)] + before + [(79, 0)])
    assert len(told) == 80


def test_epochs_of_one_batch_are_measured(tmp_path):
    scope = fs.Scope(tmp_path, allowance=0)
    wait = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ready(scope))
    model().fit(X[:8], Y[:8], batch_size=8, epochs=60, verbose=0, callbacks=[scope, wait])
    assert fs.open(tmp_path).overhead["budget"]["cost"] is not None


def test_a_custom_step_is_measured(tmp_path):
    made = model()
    scope = fs.Scope(tmp_path, allowance=0)
    with scope.attach(made):
        for _ in range(60):
            made.train_on_batch(X[:8], Y[:8])
            ready(scope)
    assert fs.open(tmp_path).overhead["budget"]["cost"] is not None


def test_a_scope_whose_watches_all_have_schedules_has_no_budget(tmp_path):
    fit(model(), fs.Scope(tmp_path, [fs.loss(every=40)], allowance=0))
    run = fs.open(tmp_path)
    assert captured(run) == [0, 40, 80, 120]
    assert "budget" not in run.overhead


def test_a_batch_of_another_size_compiles_again_and_is_reported(tmp_path):
    made = model(jit_compile=keras.backend.backend() != "torch")
    made.fit(X[:20], Y[:20], batch_size=8, epochs=2, verbose=0, callbacks=[fs.Scope(tmp_path, every=1)])
    # TensorFlow traces once, for batches of any size.
    compiled = 2 if keras.backend.backend() == "jax" else 1
    assert len(fs.open(tmp_path).overhead["first_call_seconds"]) == compiled


@pytest.mark.parametrize("broken", ["start", "stop"])
def test_an_error_while_timing_is_reported_and_training_continues(tmp_path, monkeypatch, broken):
    def fail(self, now):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(Budget, broken, fail)
    scope, made = fs.Scope(tmp_path, allowance=0), model()
    wait = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ready(scope))
    with pytest.warns(fs.FitscopeWarning, match="of ours"):
        fit(made, scope, callbacks=[wait])
    assert int(made.optimizer.iterations) == 160
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert any("of ours" in error for error in run.errors)
