"""However a training ends, nothing of ours is left on the model, the run says how it ended, and what follows is as without us."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import time
import zipfile

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import captured

BACKEND = keras.backend.backend()
FIT = {"batch_size": 8, "verbose": 0, "shuffle": False}
#: All kinds of taps at once.
WATCH = [
    fs.activations(),
    fs.gradients(),
    fs.weights(),
    fs.weight_gradients(),
    fs.updates(),
    fs.loss(),
    fs.metrics(),
]


class Trap(layers.Layer):
    """An identity that raises when it is told to."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.error = None

    def call(self, x):
        if self.error is not None:
            raise self.error
        return x


class Sets(keras.callbacks.Callback):
    """Does something at the hooks of one batch."""

    def __init__(self, batch, begin=None, end=None):
        super().__init__()
        self.batch, self.begin, self.end = batch, begin, end

    def on_train_batch_begin(self, batch, logs=None):
        if (
            batch == self.batch and self.begin and self.model
        ):  # asking for it brings its variables up to date on JAX
            self.begin()

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch and self.end and self.model:
            self.end()


def make(**mode):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            layers.Input((5,), name="x"),
            layers.Dense(3, name="first"),
            layers.Dropout(0.5, name="drop"),
            Trap(name="trap"),
            layers.Dense(2, name="last"),
        ],
        name="model",
    )
    model.compile("adam", "mse", metrics=["mae"], **mode)
    return model


def fails(where, error, model, x, y, callbacks):
    """Trains until it raises."""
    trap = model.get_layer("trap")
    error = type(error)(
        *error.args
    )  # one of its own: it holds on to all that was going on, as long as it is held

    def throw():
        raise error

    def arm():
        trap.error = error

    def data():
        for i in (0, 8, 16):
            if i == 16:
                raise error
            yield x[i : i + 8], y[i : i + 8]

    other = {
        "in a captured step": [Sets(2, begin=arm)],
        "in an uncaptured step": [Sets(1, begin=arm)],
        "in a callback before a captured step": [Sets(2, begin=throw)],
        "in a callback after a captured step": [Sets(2, end=throw)],
        "in a callback at the end of the epoch": [
            keras.callbacks.LambdaCallback(on_epoch_end=lambda *_, **__: throw())
        ],
        "in a callback of the validation": [
            keras.callbacks.LambdaCallback(on_test_batch_end=lambda *_, **__: throw())
        ],
        "in the data": [],
    }[where]
    try:
        if where == "in the data":
            model.fit(data(), verbose=0, callbacks=[*callbacks, *other])
        else:
            more = {"validation_data": (x, y)} if "validation" in where else {}
            model.fit(x, y, callbacks=[*callbacks, *other], **more, **FIT)
    except BaseException as raised:
        assert isinstance(raised, type(error)) or where == "in the data", raised
        assert "TapFailed" not in repr((raised.__context__, raised.__cause__))
    else:
        raise AssertionError("it should have raised")
        error.__traceback__ = None
    finally:
        trap.error = None


WHERE = [
    "in a captured step",
    "in an uncaptured step",
    "in a callback before a captured step",
    "in a callback after a captured step",
    "in a callback at the end of the epoch",
    "in a callback of the validation",
    "in the data",
]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("where", WHERE)
def test_a_run_records_the_exception_that_ended_it(xy, tmp_path, tools, where, error):
    if where == "in the data" and isinstance(error, KeyboardInterrupt) and BACKEND == "tensorflow":
        pytest.skip("TensorFlow does not let a KeyboardInterrupt out of its data pipeline")
    x, y = xy
    # Eager where the layer raises: a compiled step runs its Python once.
    mode = {"run_eagerly": True} if "step" in where and "callback" not in where else {}

    def life(*callbacks):
        model = make(**mode)
        model.fit(x, y, validation_data=(x, y), **FIT)
        before = tools.left_over(model)
        fails(where, error, model, x, y, callbacks)
        gc.collect()  # the exception and what it holds on to are gone
        vars(model).pop("_eval_epoch_iterator", None)  # Keras leaves it behind
        assert tools.left_over(model) == before
        if callbacks:
            (scope,) = callbacks
            scope.close()  # waits; that it ended was clear before
            run = fs.open(scope.path)
            failed = isinstance(error, ValueError)
            assert run.status == ("failed" if failed else "interrupted")
            assert ("boom" if failed else "KeyboardInterrupt") in run.ended_by
            assert run.errors == []
            assert next(iter(run.series("loss").index)) == 3
        model.fit(x, y, callbacks=list(callbacks), **FIT)
        return model

    scope = fs.Scope(
        tmp_path, WATCH, every=lambda step: step % 2 == 1
    )  # batches 0 and 2, as three steps came before
    tools.same(life(), life(scope))
    assert fs.open(scope.path).status == "complete"


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_a_run_ends_although_the_exception_is_held(xy, tmp_path, tools, error):
    """As notebooks do with the last one. It keeps alive all that was going on in `fit`, callbacks included."""

    def throw():
        raise error

    model = make()
    model.fit(*xy, **FIT)
    before = tools.left_over(model)
    scope = fs.Scope(tmp_path, WATCH, every=2)
    with pytest.raises(type(error)) as held:
        model.fit(*xy, callbacks=[scope, Sets(1, end=throw)], **FIT)
    run = fs.open(tmp_path)
    wait_for(lambda: run.status != "running")
    assert run.status == ("failed" if isinstance(error, RuntimeError) else "interrupted")
    assert run.ended_by == f"{type(error).__name__}: {error}".removesuffix(": ")
    wait_for(lambda: tools.left_over(model) == before)
    assert held.value is error


def test_an_exception_that_does_not_leave_fit_is_not_the_end(xy, tmp_path):
    """A trainer of one's own may catch what a callback raises, and go on."""

    class Patient(keras.Sequential):
        def fit(self, *args, **kwargs):
            for again in (True, True, False):
                try:
                    return super().fit(*args, **kwargs)
                except RuntimeError:
                    assert again
            return None

    def throw():
        raise RuntimeError("boom")

    keras.utils.set_random_seed(0)
    model = Patient([layers.Input((5,)), layers.Dense(2, name="last")])
    model.compile("sgd", "mse")
    times = iter([throw, throw, lambda: None])
    scope = fs.Scope(tmp_path, WATCH, every=1)
    model.fit(*xy, callbacks=[scope, Sets(1, end=lambda: next(times)())], **FIT)
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert run.ended_by is None


def test_two_scopes_both_record_how_the_training_ended(xy, tmp_path):
    def throw():
        raise RuntimeError("boom")

    scopes = [fs.Scope(tmp_path / name, WATCH, every=every) for name, every in (("one", 1), ("two", 3))]
    with pytest.raises(RuntimeError):
        make().fit(*xy, callbacks=[scopes[0], Sets(1, end=throw), scopes[1]], **FIT)
    for scope in scopes:
        scope.close()
        run = fs.open(scope.path)
        assert (run.status, run.ended_by) == ("failed", "RuntimeError: boom")


def test_the_traceback_shows_no_frame_of_fitscope(xy, tmp_path):
    def throw():
        raise RuntimeError("boom")

    def frames(*callbacks):
        keras.config.disable_traceback_filtering()
        try:
            with pytest.raises(RuntimeError) as raised:
                make().fit(*xy, callbacks=[*callbacks, Sets(1, end=throw)], **FIT)
        finally:
            keras.config.enable_traceback_filtering()
        return [(entry.path, entry.name) for entry in raised.traceback][1:]

    assert frames(fs.Scope(tmp_path, WATCH, every=2)) == frames()


@pytest.mark.parametrize("where", ["in a captured step", "in a callback after a captured step"])
def test_a_with_block_records_how_the_training_ended(xy, tmp_path, where):
    x, y = xy

    class Boom(Exception):
        pass

    model = make(run_eagerly=True)
    with pytest.raises(Boom), fs.Scope(tmp_path, WATCH, every=2) as scope:
        trap = model.get_layer("trap")

        def throw():
            raise Boom

        def arm():
            trap.error = Boom()

        hooks = Sets(2, begin=arm) if "step" in where and "callback" not in where else Sets(2, end=throw)
        model.fit(x, y, callbacks=[scope, hooks], **FIT)
    assert fs.open(tmp_path).status == "failed"


def test_an_error_at_run_time_of_a_compiled_step_is_recorded(xy, tmp_path, tools):
    """It is the user's, and must neither be swallowed nor be run again on the next batch."""
    x, y = xy
    x = x.copy()
    x[17] = 1e9  # in the third batch, which is captured

    class Checks(layers.Layer):
        def call(self, inputs):
            if BACKEND == "tensorflow":
                import tensorflow as tf

                with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(inputs), 1e6)]):
                    return tf.identity(inputs)
            if BACKEND == "jax":
                import jax

                def check(largest):
                    if largest > 1e6:
                        raise ValueError("too large")
                    return largest

                largest = jax.lax.stop_gradient(inputs).max()
                return inputs + 0 * jax.pure_callback(check, largest, largest)
            if inputs.max() > 1e6:
                raise ValueError("too large")
            return inputs

    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((5,)), Checks(), layers.Dense(2, name="last")])
    model.compile("sgd", "mse", **({"jit_compile": False} if BACKEND == "tensorflow" else {}))
    scope = fs.Scope(tmp_path, WATCH, every=2)
    with pytest.raises(Exception, match=r"too large|assert") as raised, scope:
        model.fit(x, y, callbacks=[scope], **FIT)
    assert "deleted" not in str(raised.value)
    run = fs.open(tmp_path)
    assert run.status == "failed"
    assert captured(run) == [0]
    assert run.errors == []


def contents(path):
    """What a .keras file says of the model, but for the addresses in memory by which it tells objects apart."""
    with zipfile.ZipFile(path) as file:
        return re.sub(r'"shared_object_id": \d+|"name": "adam\w*"', "", file.read("config.json").decode())


def test_a_model_can_be_saved_cloned_and_copied_during_and_after_training(xy, tmp_path, tools):
    x, y = xy

    def train(folder, *callbacks):
        folder.mkdir()
        model = make()
        held = {}

        def during(name):
            def act():
                model.save(folder / f"{name}.keras")
                held[name] = [
                    keras.models.clone_model(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                ]  # fmt: skip

            return act

        # Before the captured step our stand-in is in place.
        model.fit(x, y, callbacks=[*callbacks, Sets(2, during("before"), during("after"))], **FIT)
        model.save(folder / "end.keras")
        held["end"] = [
            keras.models.clone_model(model),
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
        ]
        return model, held

    keras.saving.get_custom_objects()["Trap"] = Trap
    try:
        plain, of_plain = train(tmp_path / "plain")
        watched, of_watched = train(tmp_path / "watched", fs.Scope(tmp_path / "runs", WATCH, every=2))
        tools.same(plain, watched)
        for name in ("before", "after", "end"):
            one, other = tmp_path / "plain" / f"{name}.keras", tmp_path / "watched" / f"{name}.keras"
            assert contents(one) == contents(other)
            loaded, twin = keras.saving.load_model(other), keras.saving.load_model(one)
            for a, b in zip(loaded.get_weights(), twin.get_weights(), strict=True):
                assert np.array_equal(a, b)
            for a, b in zip(of_plain[name], of_watched[name], strict=True):
                assert [w.shape for w in a.get_weights()] == [w.shape for w in b.get_weights()]
                assert a.get_config() == b.get_config()
            copied = of_watched[name][1]
            assert all(
                np.array_equal(v, w) for v, w in zip(copied.get_weights(), loaded.get_weights(), strict=True)
            )
        copied.fit(x, y, **FIT)  # a copy is a model like any other
    finally:
        del keras.saving.get_custom_objects()["Trap"]


@pytest.mark.skipif(
    BACKEND == "torch", reason="Keras 3.15 cannot export on torch 2.13, with or without a scope"
)
def test_a_model_can_be_exported_after_training(xy, tmp_path):
    pytest.importorskip("tensorflow")
    x, y = xy
    model = make()
    model.fit(x, y, callbacks=[fs.Scope(tmp_path / "runs", WATCH, every=1)], **FIT)
    model.export(tmp_path / "exported", verbose=False)
    import tensorflow as tf

    served = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(np.asarray(served.serve(x)), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
