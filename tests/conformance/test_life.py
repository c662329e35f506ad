"""The life of a scope: trainings one after the other, models one after the other, callbacks beside it, the newest batch."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest

import fitscope as fs
from complete import captured
from fitscope.pipeline.queue import Transport

WATCH = [fs.activations("first", keep="both"), fs.loss(), fs.updates("last")]
FIT = {"batch_size": 8, "verbose": 0, "shuffle": False}


def loss_steps(path):
    return captured(fs.open(path))


def test_a_second_fit_continues_the_run_without_compiling_again(small, xy, tmp_path, tools):
    x, y = xy
    scope = fs.Scope(tmp_path, WATCH, every=2)
    twin = small("adam")
    for _ in range(3):
        twin.fit(x, y, **FIT)
    model = small("adam")
    for n in range(3):
        model.fit(x, y, callbacks=[scope], **FIT)
        assert len(fs.runs(tmp_path)) == 1
        compiled = fs.open(tmp_path).overhead["first_call_seconds"]
        assert (compiled == []) == (n > 0)
    tools.same(twin, model)
    run = fs.open(tmp_path)
    assert [attempt["start_step"] for attempt in run.attempts] == [0, 3, 6]
    assert captured(run) == [0, 2, 4, 6, 8]
    assert run.status == "complete"
    # Compiled anew the optimizer counts from 0, but the training goes on, and so does its run.
    model.compile("adam", "mse")
    model.fit(x, y, callbacks=[scope], **FIT)
    assert len(fs.runs(tmp_path)) == 1
    assert loss_steps(tmp_path) == [0, 2, 4, 6, 8, 10]


def test_two_models_are_two_runs_whose_names_sort_by_time(small, xy, tmp_path):
    x, y = xy
    scope = fs.Scope(tmp_path, WATCH, every=1)
    made = []
    for _ in range(2):
        small().fit(x, y, callbacks=[scope], **FIT)
        made.append(str(scope.path))
    assert made == sorted(str(path) for path in tmp_path.glob("2*"))
    assert len(set(made)) == 2
    assert loss_steps(scope.path) == [0, 1, 2]


def test_another_scope_continues_an_existing_run(small, xy, tmp_path):
    """As after a crash: another scope, another model, the weights and the optimizer restored."""
    x, y = xy
    model = small("adam")
    model.fit(x, y, callbacks=[fs.Scope(tmp_path, WATCH, every=1)], **FIT)
    model.save(tmp_path / "model.keras")
    (found,) = fs.runs(tmp_path)
    again = keras.saving.load_model(tmp_path / "model.keras")
    scope = fs.Scope(found.path, WATCH, every=1)
    again.fit(x, y, callbacks=[scope], **FIT)
    assert len(fs.runs(tmp_path)) == 1
    assert loss_steps(found.path) == [0, 1, 2, 3, 4, 5]
    assert scope.path == fs.open(found.path).path


class Reads(keras.callbacks.Callback):
    """Another callback that reads the batch of the step that has just run."""

    def __init__(self, scope):
        super().__init__()
        self.scope, self.seen = scope, {}

    def on_train_batch_end(self, batch, logs=None):
        self.seen[self.scope.batch.step] = self.scope.batch["activations/first"].copy()


def test_scope_batch_holds_the_newest_captured_batch(small, xy, tmp_path):
    x, y = xy
    scope = fs.Scope(tmp_path, WATCH, every=2)
    with pytest.raises(fs.WatchError, match="none so far"):
        _ = scope.batch
    assert scope.path is None
    reads = Reads(scope)
    small().fit(x, y, callbacks=[scope, reads], **FIT)
    run = fs.open(scope.path)
    assert sorted(reads.seen) == [0, 2]
    for step, value in reads.seen.items():
        assert np.array_equal(value, run.array("activations/first", step))
    batch = scope.batch
    assert (batch.step, batch.epoch, batch.batch) == (2, 0, 2)
    assert np.array_equal(batch["activations/first"], run.array("activations/first", 2))
    assert sorted(batch) == [
        "activations/first", "learning_rate", "loss", "updates/last/bias", "updates/last/kernel",
    ]  # fmt: skip
    assert float(batch["loss"]) == run.series("loss").loc[2]
    assert "activations/first" in repr(batch)
    assert batch._ipython_key_completions_() == list(batch)
    assert f"{scope.path}, captured up to step 2" in repr(scope)
    with pytest.raises(fs.WatchError, match="Did you mean 'activations/first'"):
        batch["activations/frist"]


def test_scope_batch_holds_the_last_of_several_batches_in_one_execution(small, xy, tmp_path, backend):
    if backend == "torch":
        pytest.skip("Keras runs one step per execution on torch")
    x, y = xy
    scope = fs.Scope(tmp_path, WATCH, every=2)
    small(steps_per_execution=2).fit(x, y, callbacks=[scope], **FIT)
    assert scope.batch.step == 2


def test_other_callbacks_are_not_disturbed(watch_fit, small, xy, tmp_path):
    x, y = xy
    folder = iter(["plain", "watched"])

    def callbacks():
        here = tmp_path / next(folder)
        here.mkdir()
        return [
            keras.callbacks.BackupAndRestore(here / "backup", delete_checkpoint=False),
            keras.callbacks.ModelCheckpoint(here / "model.keras", save_freq=2),
            keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e6, restore_best_weights=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.CSVLogger(here / "log.csv"),
            keras.callbacks.TerminateOnNaN(),
        ]

    seen = watch_fit(
        lambda: small("adam"), x, y, callbacks=callbacks, epochs=5, watch=WATCH, validation_data=xy
    )
    assert list(seen.run.frame("loss").epoch) == [0, 0, 0, 1, 1, 1]  # stopped early
    assert (tmp_path / "plain/log.csv").read_text() == (tmp_path / "watched/log.csv").read_text()


def test_a_training_restored_from_backup_continues_its_steps(small, xy, tmp_path):
    x, y = xy

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("the machine went down")

    def callbacks(scope):
        return [scope, keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)]

    scope = fs.Scope(tmp_path / "runs", WATCH, every=1)
    with pytest.raises(RuntimeError, match="went down"), scope:
        small("adam").fit(x, y, epochs=3, callbacks=[*callbacks(scope), Stop()], **FIT)
    run = fs.open(tmp_path / "runs")
    assert run.status == "failed"
    small("adam").fit(x, y, epochs=3, callbacks=callbacks(fs.Scope(run.path, WATCH, every=1)), **FIT)
    assert captured(run) == list(range(9))
    assert list(run.frame("loss").epoch) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert run.status == "complete"


def test_callbacks_stay_asynchronous(small, xy, tmp_path, backend):
    """A scope must not be the reason that Keras waits for each batch."""
    x, y = xy
    found = []

    class Asks(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_begin(self, batch, logs=None):
            import sys

            frame = sys._getframe(1)
            found.append(frame.f_locals["self"]._async_train)

    small().fit(x, y, callbacks=[Asks()], **FIT)
    without = found[-1]
    small().fit(x, y, callbacks=[fs.Scope(tmp_path, WATCH, every=1), Asks()], **FIT)
    assert found[-1] == without
    if backend == "jax":  # the one on which Keras does so
        assert without


def test_validation_and_predict_calls_inside_a_training_are_not_recorded(watch_fit, small, xy):
    x, y = xy

    class Predicts(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.predict(x, verbose=0)
            self.model.evaluate(x, y, verbose=0)

    seen = watch_fit(
        small, x, y, watch=WATCH, callbacks=lambda: [Predicts()], validation_data=(x, y), epochs=2
    )
    assert captured(seen.run) == [0, 1, 2, 3, 4, 5]
    assert seen.at("activations/first").shape == (8, 4)


def test_a_step_overtaken_by_a_signal_is_not_recorded(small, xy, tmp_path, monkeypatch):
    """SIGTERM ends the run while the training goes on for a moment: the step it struck was not dropped, it came after."""
    put, handed = Transport.put, []

    def struck(self, item, nbytes):
        handed.append(item)
        if len(handed) == 2:
            self.process_ends("SIGTERM")
        return put(self, item, nbytes)

    monkeypatch.setattr(Transport, "put", struck)
    x, y = xy
    small().fit(x, y, callbacks=[fs.Scope(tmp_path, WATCH, every=1)], **FIT)
    run = fs.open(tmp_path)
    assert (run.status, run.ended_by, run.dropped) == ("interrupted", "SIGTERM", {})
    assert loss_steps(tmp_path) == [0]


@pytest.mark.parametrize("identity", ["proven", "twin"])
def test_a_new_compile_trains_with_the_new_loss(small, xy, tmp_path, identity):
    """JAX runs an old trace as long as somebody holds the function that was compiled before."""

    def train(*callbacks):
        model = small()
        histories = [model.fit(*xy, callbacks=list(callbacks), **FIT).history]
        model.compile("sgd", "mae", metrics=[keras.metrics.MeanSquaredError()])
        histories.append(model.fit(*xy, **FIT).history)  # without a scope: the one before is still there
        histories.append(model.fit(*xy, callbacks=list(callbacks), **FIT).history)
        return histories, model.get_weights()

    scope = fs.Scope(tmp_path, every=1, identity=identity)
    histories, weights = train(scope)
    plain, expected = train()
    assert [list(each.values()) for each in histories] == [list(each.values()) for each in plain]
    assert all(np.array_equal(a, b) for a, b in zip(weights, expected, strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda scope: pickle.loads(pickle.dumps(scope))])
def test_a_copy_of_a_used_scope_records_a_separate_run(small, xy, tmp_path, copied):
    """Tuners copy callbacks for each trial, also while a page is open."""
    scope = fs.Scope(tmp_path, fs.loss(), every=1)
    small().fit(*xy, batch_size=16, verbose=0, callbacks=[scope])
    assert scope.url

    small().fit(*xy, batch_size=16, verbose=0, callbacks=[copied(scope)])

    first, second = (fs.open(tmp_path, brief.id) for brief in fs.runs(tmp_path))
    assert first.id != second.id
    assert first.last_step == second.last_step
    assert scope.path.endswith((first.id, second.id))


def test_a_copied_scope_watches_the_layer_it_was_given(small, xy, tmp_path):
    model = small()
    scope = fs.Scope(tmp_path, fs.activations(model.layers[-1]), every=1)

    model.fit(*xy, batch_size=16, verbose=0, callbacks=[copy.deepcopy(scope)])

    assert f"activations/{model.layers[-1].name}" in fs.open(tmp_path).sites


class At(keras.callbacks.Callback):
    """Does something after a batch."""

    def __init__(self, batch, act):
        super().__init__()
        self.batch, self.act = batch, act

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.act()


@pytest.mark.parametrize("inner", ["fit", "evaluate"])
def test_a_training_inside_a_training_needs_a_second_scope(small, xy, tmp_path, tools, inner):
    """The first one is recorded to its end, and the other one trains as without a scope."""
    scope = fs.Scope(tmp_path, WATCH, every=1)

    def train(*callbacks):
        outer, other = small("adam"), small()
        act = At(1, lambda: getattr(other, inner)(*xy, callbacks=list(callbacks), batch_size=8, verbose=0))
        outer.fit(*xy, callbacks=[*callbacks, act], **FIT)
        return outer, other

    plain = train()
    with pytest.warns(fs.FitscopeWarning, match="its scope records another one") as told:
        watched = train(scope)
    assert len([one for one in told if one.category is fs.FitscopeWarning]) == 1
    for one, other in zip(plain, watched, strict=True):
        tools.same(one, other)
    (brief,) = fs.runs(tmp_path)
    assert brief.status == "complete"
    assert captured(fs.open(scope.path)) == [0, 1, 2]
    small().fit(*xy, callbacks=[scope], **FIT)  # afterwards it is free again
    assert len(fs.runs(tmp_path)) == 2


def test_two_trainings_at_once_need_two_scopes(small, xy, tmp_path):
    import threading

    scope, begun, other = fs.Scope(tmp_path, WATCH, every=1), threading.Event(), small()
    go_on = threading.Event()

    def wait():
        begun.set()
        assert go_on.wait(60)

    def first():
        small("adam").fit(*xy, callbacks=[scope, At(0, wait)], **FIT)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert begun.wait(60)
        with pytest.warns(fs.FitscopeWarning, match="Use a second scope"):
            other.fit(*xy, callbacks=[scope], **FIT)
    finally:
        go_on.set()
        thread.join(60)
    (brief,) = fs.runs(tmp_path)
    assert brief.status == "complete"
    assert captured(fs.open(scope.path)) == [0, 1, 2]
    assert fs.open(scope.path).errors == []
