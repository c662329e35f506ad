"""Models whose compiled function is not the one that Keras makes: fitscope never runs another function in its place."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import assert_complete
from watching import EACH_MODE, everything, same

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(24, 5)).astype("float32"), RNG.normal(size=(24, 2)).astype("float32")


class Counting(keras.Sequential):
    """Counts the calls of its training function, which only it knows of."""

    def make_train_function(self, force=False):
        if self.train_function is not None and not force:
            return
        super().make_train_function(force=force)
        kept, self.count = self.train_function, []

        def counted(*args):
            self.count.append(1)
            return kept(*args)

        self.train_function = counted


def train(tmp_path, mode, watched):
    keras.utils.set_random_seed(0)
    model = Counting([keras.Input((5,)), layers.Dense(4, name="first"), layers.Dense(2, name="last")])
    model.compile("sgd", "mse", **mode)
    callbacks = [fs.Scope(tmp_path / "runs", everything(), every=1)] if watched else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fs.FitscopeWarning)
        history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks).history
    return model, history


@EACH_MODE
def test_every_step_runs_the_train_function_of_the_user(tmp_path, mode):
    plain, expected = train(tmp_path, mode, watched=False)
    model, history = train(tmp_path, mode, watched=True)
    same(plain, model)
    assert history == expected
    assert len(model.count) == len(plain.count) == 6
    run = fs.open(tmp_path / "runs")
    assert run.status == "complete"
    assert_complete(run)
    if BACKEND == "torch":
        np.testing.assert_array_equal(run.array("inputs", 0).shape, (8, 5))
        assert {"activations/first", "gradients/last", "updates/last/kernel"} <= set(run.sites)
    else:
        why = run.unseen["activations/first"]
        assert "`train_function` is not the function that Keras makes, but one of your own" in why
        assert "override `train_step` instead" in why


@pytest.mark.skipif(BACKEND == "torch", reason="an eager function is recorded with taps around it")
def test_a_test_function_of_the_user_leaves_the_training_recorded(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5,)), layers.Dense(2, name="last")])
    model.compile("sgd", "mse")
    model.make_test_function()
    kept, calls = model.test_function, []
    model.test_function = lambda *args: (calls.append(1), kept(*args))[1]
    scope = fs.Scope(tmp_path / "runs", [fs.activations()], every=1, on=("train", "validation"))
    with pytest.warns(fs.FitscopeWarning, match="override `test_step` instead"):
        model.fit(X, Y, batch_size=8, verbose=0, validation_data=(X, Y), callbacks=[scope])
    run = fs.open(tmp_path / "runs")
    assert "activations/last" in run.sites
    assert "`test_function` is not the function" in run.unseen["validation/activations/last"]
    assert len(calls) == 3
