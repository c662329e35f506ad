"""Whatever breaks inside fitscope, wherever Keras calls it: `fit` ends as without a scope, and the user hears why something is missing."""

from __future__ import annotations

import importlib
import warnings

import keras
import numpy as np
import pytest

import fitscope as fs
from fitscope.capture import beginning, callback, dispatch, life, patch, recordings, step_count, training
from fitscope.capture.backends import _harvest, adapter
from fitscope.capture.layer_taps import Taps
from fitscope.capture.losses import Losses
from fitscope.capture.missing import Missing
from fitscope.capture.optimizer_taps import OptimizerTaps
from fitscope.pipeline import costs, recorder
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.plan import Plan

BACKEND = keras.backend.backend()
ADAPTER = type(adapter(BACKEND))
#: The module that makes the collectors of a step.
COLLECTOR = importlib.import_module(
    "fitscope.capture.backends._tensorflow_trace" if BACKEND == "tensorflow" else ADAPTER.__module__
)
FIT = {"batch_size": 8, "verbose": 0, "shuffle": False, "epochs": 2}


class Ours(Exception):
    pass


def boom(*args, **kwargs):
    raise Ours("broken on purpose")


#: What Keras calls, directly or not, from the begin of a training to its end, and what adapters have of their own.
PATH = [
    (ADAPTER, "unbuilt"), (ADAPTER, "why_not"), (ADAPTER, "on_accelerator"), (ADAPTER, "iterations"), (ADAPTER, "tapped"),
    (training, "install"), (training.Recording, "_deliver"), (dispatch.TappedSteps, "get"), (dispatch.StandIn, "remove"),
    (patch, "Taps"), (patch, "patched"), (Taps, "patches"), (Taps, "account"), (Taps, "_seen"), (Losses, "computed"),
    (Losses, "names"), (OptimizerTaps, "_applied"), (_harvest.Harvest, "rename"), (COLLECTOR, "Collector"), (Missing, "of"),
]  # fmt: skip
if BACKEND == "jax":  # the rest is the same Python on every backend
    PATH += [
        (life, "_adapter"), (recordings, "resolve"), (beginning, "Recording"), (Anatomy, "of"), (Anatomy, "describe"),
        (life.Life, "train_begin"), (life.Life, "_start"), (life.Life, "_begin"), (life.Life, "_begin_pass"),
        (life.Life, "epoch_begin"), (life.Life, "before_step"), (life.Life, "end_pass"), (life.Life, "end"),
        (beginning.Beginning, "recording"), (beginning.Beginning, "_recorder"),
        (recordings.Recordings, "plan"), (recordings.Recordings, "_pace"), (recordings.Recordings, "recorder"),
        (training.Recording, "note_saves"), (training.Recording, "epoch"), (training.Recording, "before_step"),
        (training.Recording, "_turns"), (training.Recording, "_request"), (training.Recording, "_ask"),
        (training.Recording, "_shown"), (training.Recording, "epoch_end"), (training.Recording, "begin_pass"),
        (training.Recording, "before_pass_step"), (training.Recording, "end_pass"), (training.Recording, "_leave"),
        (step_count.StepCount, "done"), (Plan, "due"), (Plan, "wants"), (Missing, "due"), (Missing, "at_end"),
        (recorder.Recorder, "ready"), (recorder.Recorder, "put"), (costs.Costs, "measured"),
        (recorder.Recorder, "finish"), (recorder.Recorder, "finish_with"), (recorder.Transport, "close"),
    ]  # fmt: skip


def make() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, name="only")])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def plain():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(16, 5)).astype("float32"), rng.normal(size=(16, 2)).astype("float32")
    model = make()
    model.fit(x, y, validation_data=(x, y), **FIT)
    return x, y, model.get_weights()


@pytest.mark.parametrize(("owner", "name"), PATH, ids=lambda part: getattr(part, "__name__", part))
def test_fit_ends_normally_after_any_error_of_fitscope(plain, tmp_path, monkeypatch, owner, name):
    x, y, wanted = plain
    model = make()
    watching = fs.Scope(tmp_path, every=1, on=("train", "validation"))
    monkeypatch.setattr(owner, name, boom)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y, validation_data=(x, y), callbacks=[watching], **FIT)
    monkeypatch.undo()
    for a, b in zip(model.get_weights(), wanted, strict=True):
        assert np.array_equal(a, b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watching.close()
    said = [str(w.message) for w in caught if issubclass(w.category, fs.FitscopeWarning)]
    runs = fs.runs(tmp_path)
    if runs:
        said += [*fs.open(tmp_path).errors, *fs.open(tmp_path).unseen.values()]
    assert any("broken on purpose" in text for text in said), said


def test_every_hook_runs_inside_the_shield():
    """Whoever overrides a hook, now or later."""
    assert {
        "on_train_begin",
        "on_train_batch_begin",
        "on_predict_end",
        "set_model",
        "set_params",
    } <= callback.NAMES
    own = callback.NAMES & vars(fs.Scope).keys()
    assert len(own) > 10
    assert all(vars(fs.Scope)[name].__code__.co_filename == callback.__file__ for name in own)

    class Careless(callback.Hooks):
        def on_epoch_end(self, epoch, logs=None):
            raise Ours("broken on purpose")

    with pytest.warns(fs.FitscopeWarning, match="broken on purpose"):
        Careless().on_epoch_end(0)


def test_a_warning_that_the_user_turned_into_an_error_is_raised(plain, tmp_path, monkeypatch):
    x, y, _ = plain
    monkeypatch.setattr(recordings, "resolve", boom)
    with pytest.raises(fs.FitscopeWarning, match="broken on purpose"):
        make().fit(x, y, callbacks=[fs.Scope(tmp_path, every=1)], **FIT)


def test_a_wrong_watch_is_no_error_after_the_first_step(plain, tmp_path, monkeypatch):
    """A model that only its first step can build is known too late to stop the training."""
    x, y, _ = plain
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(2, name="only")])
    model.compile("sgd", "mse")
    monkeypatch.setattr(ADAPTER, "unbuilt", lambda *args, **kwargs: True)
    monkeypatch.setattr(ADAPTER, "build", boom)
    with pytest.warns(fs.FitscopeWarning, match="There are: 'only'"):
        model.fit(x, y, callbacks=[fs.Scope(tmp_path, fs.activations("other"), every=1)], **FIT)
    assert fs.runs(tmp_path) == []


@pytest.mark.parametrize("name", ["_turns", "_request", "_deliver"])
def test_a_loop_continues_after_any_error_of_fitscope(plain, tmp_path, monkeypatch, name):
    x, y, _ = plain
    results = []
    for broken in (False, True):
        model = make()
        watching = fs.Scope(tmp_path / str(broken), every=1)
        if broken:
            monkeypatch.setattr(training.Recording, name, boom)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with watching.attach(model):
                for _ in range(3):
                    model.train_on_batch(x, y)
        results.append(model.get_weights())
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
