"""A black box keeps the last steps, writes them when something is wrong, and a replay gives what the training gave, bit for bit.

The reference is the same training without a scope, stopped where it is compared. Its optimizer notes the gradients of the last step
itself, so no code of fitscope has a part in them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import fitscope as fs

BACKEND = keras.backend.backend()
BAD = 14  #: the step at which the training turns NaN
BATCH = 8
LOSS = {"watch": fs.loss(), "every": 5}


@keras.saving.register_keras_serializable("black_box")
class Noting(keras.optimizers.SGD):
    """SGD with momentum that keeps the gradients of the newest step."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.noted = [self.add_variable_from_reference(v, name="noted") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign(self.noted[self._get_variable_index(variable)], gradient)
        super().update_step(gradient, variable, learning_rate)


def make(cls: type[keras.Model] = keras.Model, **compile_: Any) -> keras.Model:
    """A model with a batch norm and a dropout: state that is not trained, and random numbers."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((5,))
    for layer in (
        keras.layers.Dense(6, name="first", activation="relu"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(0.4, name="drop"),
        keras.layers.Dense(2, name="last"),
    ):
        x = layer(x)
    model = cls(inputs, x)
    model.compile(Noting(0.05, momentum=0.9), "mse", **{"metrics": ["mae"], **compile_})
    return model


def data(steps: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Batches, of which one has an Inf."""
    x = np.random.default_rng(1).normal(size=(steps * BATCH, 5)).astype("float32")
    if steps > BAD:
        x[BAD * BATCH + 3, 2] = np.inf
    return x, np.random.default_rng(2).normal(size=(steps * BATCH, 2)).astype("float32")


def fit(model: keras.Model, x: Any, y: Any = None, **settings: Any) -> keras.callbacks.History:
    arrays = {"batch_size": BATCH, "shuffle": False} if y is not None else {}
    return model.fit(x, y, **{"verbose": 0, **arrays, **settings})


def plain(steps: int, make: Callable[[], keras.Model] = make) -> SimpleNamespace:
    """The training without a scope, stopped after this many steps."""
    model = make()
    x, y = data()
    history = fit(model, x[: steps * BATCH], y[: steps * BATCH])
    return SimpleNamespace(
        weights=[keras.ops.convert_to_numpy(w) for w in model.weights],
        gradients=[keras.ops.convert_to_numpy(v) for v in model.optimizer.noted],
        loss=history.history["loss"][-1],
        model=model,
    )


def equal(found: Any, expected: Any) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=True) and a.dtype == b.dtype
        for a, b in zip(found, expected, strict=True)
    )


def check(replay: Any, step: int, make: Callable[[], keras.Model] = make) -> None:
    """Compares a replay with the training by hand."""
    before, after = plain(step, make), plain(step + 1, make)
    assert replay.agrees is True, replay.notes
    names = [name for name in replay.before if "seed" not in name]
    paths = [w.path.partition("/")[2] if w.path.count("/") > 1 else w.path for w in after.model.weights]
    known = [n for n, path in enumerate(paths) if path in names]
    assert len(known) == len(names) == 8
    assert equal([replay.before[paths[n]] for n in known], [before.weights[n] for n in known])
    assert equal([replay.after[paths[n]] for n in known], [after.weights[n] for n in known])
    trained = [w.path for w in after.model.trainable_weights]
    gradients = [replay[f"weight_gradients/{path}"] for path in trained]
    assert equal(gradients, after.gradients)
    assert np.array_equal(float(replay.logs["loss"]), after.loss, equal_nan=True)
    assert equal([keras.ops.convert_to_numpy(w) for w in replay.model.weights], before.weights)


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training that turns NaN, with a black box."""
    to = tmp_path_factory.mktemp("flown")
    model = make()
    history = fit(model, *data(), callbacks=[fs.Scope(to, **LOSS, black_box=6)])
    run = fs.open(to)
    assert run.errors == []
    return SimpleNamespace(run=run, model=model, history=history.history)


def test_the_steps_before_a_finding_are_written(flown: Any) -> None:
    (box,) = flown.run.black_box
    assert box.odd_step == BAD
    assert {*range(BAD - 5, BAD + 1)} <= {*box.steps}
    assert len(box.steps) <= 3 * 6
    assert any("nonfinite" in why for why in box.why)


@pytest.mark.parametrize("step", [BAD, BAD - 2])
def test_a_replay_is_the_step_of_the_training(flown: Any, step: int) -> None:
    replay = flown.run.replay(step)
    check(replay, step)
    x, y = data()
    here = slice(step * BATCH, (step + 1) * BATCH)
    assert equal([np.asarray(replay.x), np.asarray(replay.y)], [x[here], y[here]])
    assert replay.sample_weight is None
    assert np.isfinite(replay.loss) == (step < BAD)
    assert replay["activations/first"].shape == (BATCH, 6)
    assert replay.identity.status == "proven"


def test_a_replay_with_another_loss_does_not_agree(flown: Any) -> None:
    other = make()
    other.compile(Noting(0.05, momentum=0.9), "mae", metrics=["mae"])
    replay = flown.run.replay(BAD - 2, model=other)
    assert replay.agrees is False
    assert [note for note in replay.notes if "returned other logs than in the training" in note]
    assert "NOT as in the training" in repr(replay)


def test_a_black_box_does_not_change_the_training(flown: Any) -> None:
    model = make()
    history = fit(model, *data()).history
    weights = [[keras.ops.convert_to_numpy(w) for w in m.weights] for m in (model, flown.model)]
    assert equal(*weights)
    assert equal(
        *([keras.ops.convert_to_numpy(v) for v in m.optimizer.variables] for m in (model, flown.model))
    )
    np.testing.assert_equal(flown.history, history)


def test_a_healthy_training_writes_no_black_box(tmp_path: Any) -> None:
    fit(make(), *data(6), callbacks=[fs.Scope(tmp_path, **LOSS, black_box=4)])
    run = fs.open(tmp_path)
    assert run.black_box == []
    assert not list(tmp_path.rglob("black_box"))
    assert run.errors == []
    with pytest.raises(fs.RunError, match="There are: none"):
        run.replay(3)


class Custom(keras.Model):
    """A step of one's own; each backend writes it differently, so it only wraps Keras's."""

    def train_step(self, *args: Any) -> Any:
        return super().train_step(*args)


def test_replaying_a_custom_model_asks_for_the_model(tmp_path: Any) -> None:
    scope = fs.Scope(tmp_path, **LOSS, black_box=4)
    with pytest.raises(RuntimeError, match="enough"):
        fit(make(Custom), *data(10), callbacks=[scope, Raising(7, RuntimeError("enough"))])
    scope.close()
    run = fs.open(tmp_path)
    with pytest.raises(fs.RunError, match=r"(?s)Expected.*Received.*model=model"):
        run.replay(6)
    check(run.replay(6, model=make(Custom)), 6, lambda: make(Custom))
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    other.compile("sgd", "mse")
    with pytest.raises(fs.RunError, match="trainable variables are those of the training"):
        run.replay(6, model=other)


class Raising(keras.callbacks.Callback):
    """Raises after a batch."""

    def __init__(self, step: int, error: BaseException) -> None:
        super().__init__()
        self.step, self.error = step, error

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.step:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("no more"), KeyboardInterrupt()], ids=["exception", "ctrl-c"])
def test_a_training_that_dies_writes_its_last_steps(tmp_path: Any, error: BaseException) -> None:
    scope = fs.Scope(tmp_path, **LOSS, black_box=4)
    with pytest.raises(type(error)):
        fit(make(), *data(12), callbacks=[scope, Raising(9, error)])
    scope.close()
    run = fs.open(tmp_path)
    assert run.status in ("failed", "interrupted")
    (box,) = run.black_box
    assert {6, 7, 8, 9} <= {*box.steps}
    assert box.steps[-1] == 9
    assert type(error).__name__ in box.why[-1]
    check(run.replay(9), 9)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A generator that writes every batch into the same memory. Only torch is done with a batch when the step returns."""
    x, y = data()
    one = np.empty((BATCH, 5), "float32"), np.empty((BATCH, 2), "float32")
    for start in range(0, len(x), BATCH):
        if BACKEND != "torch":
            one = np.empty_like(one[0]), np.empty_like(one[1])
        one[0][:], one[1][:] = x[start : start + BATCH], y[start : start + BATCH]
        yield one


def sources() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {"generator": batches}
    if BACKEND == "tensorflow":
        import tensorflow as tf

        found["tf.data"] = lambda: tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
    if BACKEND == "torch":
        import torch

        found["DataLoader"] = lambda: torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*map(torch.from_numpy, data())), batch_size=BATCH
        )
    return found


class ChangesTheRate(keras.callbacks.Callback):
    """Sets the learning rate before every batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.05 / (1 + batch)


@pytest.mark.parametrize("source", sources())
def test_batches_from_a_generator_are_kept(tmp_path: Any, source: str) -> None:
    reference = make()
    fit(reference, sources()[source](), steps_per_epoch=BAD, callbacks=[ChangesTheRate()])
    fit(make(), sources()[source](), callbacks=[fs.Scope(tmp_path, **LOSS, black_box=6), ChangesTheRate()])
    run = fs.open(tmp_path)
    assert run.errors == []
    replay = run.replay(BAD - 1)
    assert replay.agrees is True, replay.notes
    x, _ = data()
    assert equal([np.asarray(replay.x)], [x[(BAD - 1) * BATCH : BAD * BATCH]])
    noted = [keras.ops.convert_to_numpy(v) for v in reference.optimizer.noted]
    assert equal([replay[f"weight_gradients/{w.path}"] for w in reference.trainable_weights], noted)
    assert equal(
        [replay.after["last/kernel"]], [keras.ops.convert_to_numpy(reference.get_layer("last").kernel)]
    )


@pytest.mark.skipif(BACKEND == "torch", reason="Keras runs one step per call on torch")
def test_a_black_box_keeps_several_steps_of_one_call(tmp_path: Any) -> None:
    def several() -> keras.Model:
        return make(steps_per_execution=3)

    fit(several(), *data(), callbacks=[fs.Scope(tmp_path, **LOSS, black_box=6)])
    run = fs.open(tmp_path)
    assert run.errors == []
    replay = run.replay(BAD - 1)  # the second of its call
    assert replay.agrees is True, replay.notes
    x, _ = data()
    assert equal([np.asarray(replay.x)], [x[(BAD - 1) * BATCH : BAD * BATCH]])
    assert equal([replay[f"weight_gradients/{path}"] for path in ("last/bias",)], [plain(BAD).gradients[-1]])


def test_a_black_box_keeps_steps_of_train_on_batch(tmp_path: Any) -> None:
    reference = make()
    x, y = data(8)
    for start in range(0, 7 * BATCH, BATCH):
        reference.train_on_batch(x[start : start + BATCH], y[start : start + BATCH])
    model = make()
    with pytest.raises(ValueError, match="lost"), fs.Scope(tmp_path, **LOSS, black_box=4).attach(model):
        for start in range(0, len(x), BATCH):
            model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH])
        raise ValueError("lost")
    replay = fs.open(tmp_path).replay(6)
    assert replay.agrees is True, replay.notes
    noted = [keras.ops.convert_to_numpy(v) for v in reference.optimizer.noted]
    assert equal([replay[f"weight_gradients/{w.path}"] for w in reference.trainable_weights], noted)


class Weighing(keras.callbacks.Callback):
    """Notes the memory that the black box takes."""

    def __init__(self, scope: fs.Scope) -> None:
        super().__init__()
        self.scope, self.most = scope, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        kept = self.scope._recordings.newest.recorder.output.kept
        self.most = max(self.most, kept.nbytes)


def test_a_black_box_stays_within_its_memory(tmp_path: Any) -> None:
    memory = 80_000 if BACKEND == "torch" else 3_000  # on torch each step has the state of random generators
    scope = fs.Scope(tmp_path, **LOSS, black_box=fs.BlackBox(40, memory=memory))
    weighing = Weighing(scope)
    model = make()
    fit(model, *data(BAD), callbacks=[scope, weighing])
    assert 0 < weighing.most <= memory
    run = fs.open(tmp_path)
    assert run.errors == []
    assert run._statuses()[0]["black_box"]["dropped"] > 0
    assert equal([keras.ops.convert_to_numpy(w) for w in model.weights], plain(BAD).weights)


def test_too_little_memory_is_reported(tmp_path: Any) -> None:
    model = make()
    with pytest.warns(fs.FitscopeWarning, match="Allow more"):
        fit(model, *data(6), callbacks=[fs.Scope(tmp_path, **LOSS, black_box=fs.BlackBox(memory=200))])
    run = fs.open(tmp_path)
    assert "Allow more" in run.errors[0]
    assert "Allow more" in run._statuses()[0]["black_box"]["trouble"]
    assert equal([keras.ops.convert_to_numpy(w) for w in model.weights], plain(6).weights)


def test_a_forged_model_is_not_built(flown: Any, tmp_path: Any) -> None:
    there = tmp_path / "runs"
    shutil.copytree(flown.run.path, there / "forged")
    (model,) = there.rglob("black_box/*/model.json")
    text = model.read_text().replace(
        '"module": "keras.layers", "class_name": "Dense"', '"module": "os", "class_name": "system"', 1
    )
    assert '"system"' in text
    model.write_text(text)
    with pytest.raises(fs.RunError, match="'system' of 'os'"):
        fs.open(there).replay(BAD)
