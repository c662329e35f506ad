"""Training loops that somebody wrote: `train_on_batch`, a step of one's own in each framework, taps, epochs and checkpoints."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import fitscope as fs
from complete import captured

BACKEND = keras.backend.backend()
BOTH = {"keep": "both"}
WATCH = [
    fs.activations(**BOTH), fs.gradients(**BOTH), fs.weights(**BOTH), fs.weight_gradients(**BOTH), fs.updates(**BOTH),
    fs.loss(), fs.taps(**BOTH),
]  # fmt: skip


def batches(x, y, epochs=2):
    for epoch in range(epochs):
        for i in range(0, len(x), 8):
            yield epoch, x[i : i + 8], y[i : i + 8]


def on_batch(model, x, y, scope=None):
    """A loop as people write it; returns every number it saw."""
    numbers, last = [], 0
    for epoch, a, b in batches(x, y):
        if epoch != last:
            numbers.append(
                model.evaluate(x, y, verbose=0, batch_size=8, callbacks=[scope] if scope else None)
            )
            numbers.append(model.test_on_batch(x[:4], y[:4]))
            last = epoch
            if scope:
                scope.epoch_end()
        numbers.append(model.train_on_batch(a, b))
    return numbers


@pytest.mark.parametrize("every", [1, 3])
def test_train_on_batch_is_recorded(small, xy, tmp_path, tools, every):
    x, y = xy
    plain = small("adam")
    wanted = on_batch(plain, x, y)
    model = small("adam")
    model.make_train_function()
    before = tools.left_over(model)
    scope = fs.Scope(tmp_path, [*WATCH, fs.inputs(**BOTH)], every, on=("train", "validation"))
    with scope.attach(model):
        assert on_batch(model, x, y, scope) == wanted
    tools.same(plain, model)
    after = tools.left_over(model)
    assert after.keys() == before.keys()
    assert "train_on_batch" not in vars(model)
    assert "save" not in vars(model)
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert run.errors == []
    steps = list(range(0, 6, every))
    frame = run.frame("loss")
    assert list(frame.index) == steps
    assert list(frame.epoch) == [step // 3 for step in steps]
    assert list(frame.batch) == [step % 3 for step in steps]
    at = tools.Reader(run)
    for step in steps:
        rows = x[8 * (step % 3) : 8 * (step % 3) + 8]
        assert np.array_equal(at("inputs", step), rows)
        tools.close(at("activations/first", step), tools.dense(at, "first", rows, step))
    assert run.series("validation/loss").index.tolist() == [(3, 0), (3, 1), (3, 2), (3, 0)]


def test_an_unbuilt_model_is_recorded_in_a_loop(xy, tmp_path, tools):
    x, y = xy

    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")])
        model.compile("sgd", "mse")
        return model

    plain = make()
    wanted = [plain.train_on_batch(a, b) for _, a, b in batches(x, y)]
    model = make()
    with fs.Scope(tmp_path, WATCH, 1).attach(model):
        assert [model.train_on_batch(a, b) for _, a, b in batches(x, y)] == wanted
    tools.same(plain, model)
    run = fs.open(tmp_path)
    assert captured(run) == list(range(6))
    tools.close(run.array("activations/a", 0), tools.dense(tools.Reader(run), "a", x[:8]))


class Step:
    """The same training, SGD on the mean squared error, as a step in each framework's own way."""

    def __init__(self, scope=None, kind="compiled"):
        keras.utils.set_random_seed(0)
        self.model = keras.Sequential(
            [
                keras.layers.Input((5,)),
                keras.layers.Dense(4, activation="tanh", name="first"),
                keras.layers.Dropout(0.5, name="drop"),
                keras.layers.Dense(2, name="last"),
            ]
        )
        self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        function = getattr(self, BACKEND)(kind)
        self.function = scope.step(function) if scope is not None else function
        if BACKEND == "jax":
            parts = (
                self.model.trainable_variables,
                self.model.non_trainable_variables,
                self.optimizer.variables,
            )
            self.state = tuple([v.value for v in part] for part in parts)

    def __call__(self, x, y):
        if BACKEND == "jax":
            loss, self.state = self.function(self.state, x, y, 2)
            return float(loss)
        return float(self.function(x, y))

    def weights(self):
        if BACKEND == "jax":
            return [np.asarray(array) for part in self.state for array in part]
        variables = self.model.variables + self.optimizer.variables
        return [keras.ops.convert_to_numpy(variable) for variable in variables]

    def tensorflow(self, kind):
        import tensorflow as tf

        def step(x, y):
            with tf.GradientTape() as tape:
                prediction = self.model(x, training=True)
                loss = tf.reduce_mean(fs.tap("error", prediction - y) ** 2)
                if loss > 1e6:  # a branch that autograph converts
                    loss = loss * 0.5
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply(gradients, self.model.trainable_variables)
            return loss

        if kind == "eager":
            return step
        return tf.function(step, jit_compile=kind == "xla", autograph=True)

    def jax(self, kind):
        import jax

        def loss_of(trainable, non_trainable, x, y, power):
            prediction, non_trainable = self.model.stateless_call(trainable, non_trainable, x, training=True)
            return (fs.tap("error", prediction - y) ** power).mean(), non_trainable

        def step(state, x, y, power):
            trainable, non_trainable, momenta = state
            compute = jax.value_and_grad(loss_of, has_aux=True)
            (loss, non_trainable), gradients = compute(trainable, non_trainable, x, y, power)
            trainable, momenta = self.optimizer.stateless_apply(momenta, gradients, trainable)
            return loss, (trainable, non_trainable, momenta)

        return step if kind == "eager" else jax.jit(step, static_argnums=3, donate_argnums=0)

    def torch(self, kind):
        import torch

        torch_optimizer = (
            torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9) if kind == "torch.optim" else None
        )

        def step(x, y):
            self.model.zero_grad()
            prediction = self.model(torch.as_tensor(x), training=True)
            loss = (fs.tap("error", prediction - torch.as_tensor(y)) ** 2).mean()
            loss.backward()
            if torch_optimizer is not None:
                torch_optimizer.step()
            else:
                weights = self.model.trainable_weights
                with torch.no_grad():
                    self.optimizer.apply([w.value.grad for w in weights], weights)
            return loss.item()

        return step


KINDS = {
    "jax": ["compiled", "eager"],
    "tensorflow": ["compiled", "xla", "eager"],
    "torch": ["compiled", "torch.optim"],
}[BACKEND]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_custom_step_is_recorded(xy, tmp_path, tools, kind, every):
    x, y = xy
    plain = Step(kind=kind)
    wanted = [plain(a, b) for _, a, b in batches(x, y)]
    scope = fs.Scope(tmp_path, WATCH, every)
    mine = Step(scope, kind)
    losses = []
    with scope.attach(mine.model, optimizer=mine.optimizer):
        for n, (epoch, a, b) in enumerate(batches(x, y)):
            if n == 3:
                scope.epoch_end()
            losses.append(mine(a, b))
            if n % every == 0:
                assert scope.batch.step == n
                assert scope.batch.epoch == epoch
                assert scope.batch["activations/last"].shape == (len(a), 2)
    assert losses == wanted
    assert all(np.array_equal(a, b) for a, b in zip(mine.weights(), plain.weights(), strict=True))
    run = fs.open(tmp_path)
    assert run.errors == []
    assert run.unseen == {}
    steps = list(range(0, 6, every))
    assert captured(run) == steps
    at = tools.Reader(run)
    for step in steps:
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        assert np.float32(run.series("loss").loc[step]) == np.float32(wanted[step])
        tools.close(at("activations/first", step), np.tanh(tools.dense(at, "first", x[rows], step)))
        last = at("activations/drop", step).astype("float64") @ at("weights/last/kernel", step)
        tools.close(at("activations/last", step), last + at("weights/last/bias", step))
        error = at("activations/last", step) - y[rows]
        assert np.array_equal(at("taps/error", step), error)
        tools.close(at("gradients/last", step), 2 * error / error.size)
        gradient = at("activations/drop", step).T.astype("float64") @ at("gradients/last", step)
        tools.close(at("weight_gradients/last/kernel", step), gradient)
        if step == 0:
            tools.close(at("updates/last/kernel", step), -0.1 * gradient, atol=1e-5)


def test_a_model_that_the_first_step_builds_is_recorded(xy, tmp_path):
    x, _ = xy
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(2, name="only")])
    scope = fs.Scope(tmp_path, [fs.activations(keep="both")], 1)

    def step(x):
        return keras.ops.convert_to_numpy(model(x))

    called = scope.step(step, model=model)
    with pytest.warns(fs.FitscopeWarning, match="first step was not captured.*model.build"):
        for _ in range(3):
            called(x[:8])
        scope.close()
    assert fs.open(tmp_path).tensor("activations/only").step.values.tolist() == [1, 2]


def test_a_custom_step_may_return_nothing(small, xy, tmp_path):
    x, _ = xy
    model = small()
    scope = fs.Scope(tmp_path, WATCH, 1)

    @scope.step
    def step(x):
        model(keras.ops.convert_to_tensor(x))

    scope.attach(model)
    with pytest.warns(fs.FitscopeWarning, match="loss: the step computes no loss"):
        assert step(x[:8]) is None
        scope.close()
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert run.unseen["loss"] == "the step computes no loss that can be seen from outside"
    assert "activations/first" in run.sites


def test_a_tap_name_used_twice_in_a_step_is_numbered(small, xy, tmp_path):
    x, _ = xy
    scope = fs.Scope(tmp_path, fs.taps(keep="both"), 1)

    @scope.step
    def step(x):
        x = keras.ops.convert_to_tensor(x)
        return fs.tap("again", fs.tap("again", x) * 2)

    with (
        pytest.warns(fs.FitscopeWarning, match="taps/again: this name is used more than once"),
        scope.attach(small()),
    ):
        for _ in range(2):
            step(x[:8])
    run = fs.open(tmp_path)
    assert run.sites == ["taps/again", "taps/again#2"]
    assert np.array_equal(run.array("taps/again#2", 1), 2 * x[:8])


def test_an_exception_in_a_custom_loop_ends_the_run_as_failed(small, xy, tmp_path):
    x, y = xy
    model = small()
    scope = fs.Scope(tmp_path, fs.loss(), 1)
    with pytest.raises(ZeroDivisionError), scope.attach(model):
        model.train_on_batch(x[:8], y[:8])
        1 / 0  # noqa: B018
    assert "train_on_batch" not in vars(model)
    run = fs.open(tmp_path)
    assert run.status == "failed"
    assert run.ended_by == "ZeroDivisionError: division by zero"


def test_checkpoints_are_recorded_with_their_steps(small, xy, tmp_path):
    x, y = xy
    model = small()
    saved = tmp_path / "checkpoints"
    saved.mkdir()
    scope = fs.Scope(tmp_path / "runs", fs.loss(), 1)
    keep = keras.callbacks.ModelCheckpoint(str(saved / "e{epoch}.keras"))
    model.fit(x, y, epochs=3, batch_size=8, verbose=0, callbacks=[scope, keep])
    with scope.attach(model):
        model.train_on_batch(x[:8], y[:8])
        model.save_weights(saved / "after.weights.h5")
        scope.checkpoint("elsewhere")
    run = fs.open(tmp_path / "runs")
    assert [int(step) for step in run.checkpoints.step] == [3, 6, 9, 10, 10]
    assert run.checkpoint(7) == str(saved / "e2.keras")
    again = keras.saving.load_model(run.checkpoint(7))
    assert int(keras.ops.convert_to_numpy(again.optimizer.iterations)) == 6
    assert "save" not in vars(model)


def test_misuse_of_a_custom_loop_is_an_error(small, xy, tmp_path):
    x, y = xy
    scope = fs.Scope(tmp_path)
    with pytest.raises(fs.WatchError, match=r"scope.attach\(model\)"):
        scope.step(lambda: None)()
    with pytest.raises(fs.WatchError, match="a function"):
        scope.step(3)
    with pytest.raises(fs.WatchError, match=r"no scope records yet.*already a step of a scope"):
        scope.step(scope.step(lambda: None))
    with pytest.raises(fs.WatchError, match="a custom loop"):
        scope.epoch_end()
    with pytest.raises(fs.WatchError, match="recorded"):
        scope.checkpoint("nowhere")
    with pytest.raises(fs.WatchError, match="a name for the tap"):
        fs.tap("", 1)
    model = small()
    with scope.attach(model), pytest.raises(fs.WatchError, match="one thing at a time"):
        model.fit(x, y, verbose=0, callbacks=[scope])
    model.fit(x, y, verbose=0, callbacks=[scope])
