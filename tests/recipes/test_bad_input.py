"""What cannot be recorded is said, with the name of the site, and the training goes on as if nobody had asked."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import by_hand
import fitscope as fs
from complete import asked, captured

FIT = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 2}


def fit_both(make, tools, scope: fs.Scope, match: str) -> None:
    """With and without the scope: told what is wrong, and the same weights."""
    x, y = by_hand.data()
    plain, model = make(), make()
    plain.fit(x, y, **FIT)
    with pytest.warns(fs.FitscopeWarning, match=match):
        model.fit(x, y, callbacks=[scope], **FIT)
    tools.same(plain, model)


def test_a_missing_ids_input_is_reported(tools, tmp_path):
    scope = fs.Scope(tmp_path, fs.loss(per_sample=True, ids="id"), every=1)
    fit_both(tools.make, tools, scope, "sample_loss: there is no input 'id'")
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert len(captured(run)) == 6
    assert len(run.samples) == 44  # without a name
    assert run.samples["id"].isna().all()
    assert any("'id'" in error for error in run.errors)


class OfTheWholeEpoch(keras.metrics.Mean):
    """Cannot say anything of one batch alone."""

    def stateless_update_state(self, *args, **kwargs):
        raise NotImplementedError("only a whole epoch has a value")


def test_a_metric_that_fails_on_one_batch_is_reported(tools, tmp_path):
    class Own(keras.Model):
        """Keeps the metric itself and updates it in its step."""

        def __init__(self, inner: keras.Model) -> None:
            super().__init__()
            self.inner, self.of_epoch = inner, OfTheWholeEpoch(name="epoch_only")

        def call(self, x, training=None):
            return self.inner(x, training=training)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self.of_epoch.update_state(y_pred)
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def make() -> keras.Model:
        model = Own(tools.make())
        model.build((None, 6))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
        return model

    scope = fs.Scope(tmp_path, [fs.metrics(), fs.loss()], every=1)
    fit_both(make, tools, scope, "metrics/epoch_only has no value for one batch alone")
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert "only a whole epoch" in run.unseen["metrics/epoch_only"]
    assert len(run.series("metrics/accuracy")) == len(captured(run)) == 6


def test_two_taps_of_one_name_are_numbered(tools, tmp_path):
    class Twice(keras.layers.Layer):
        def call(self, x):
            return fs.tap("again", fs.tap("again", x) * 2)

    def make() -> keras.Model:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Input((6,)), Twice(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    scope = fs.Scope(tmp_path, fs.taps(keep="tensor"), every=1)
    fit_both(make, tools, scope, "taps/again: this name is used more than once")
    run, x = fs.open(tmp_path), by_hand.data()[0]
    assert asked(run) == ["taps/again", "taps/again#2"]
    np.testing.assert_array_equal(run.array("taps/again", 0), x[:8])
    np.testing.assert_array_equal(run.array("taps/again#2", 0), 2 * x[:8])


def test_a_custom_step_that_returns_nothing_has_no_loss_and_a_warning(tools, tmp_path):
    """There is no loss in it to be seen: a warning and the run name it, and the rest is there."""
    x, _ = by_hand.data()
    model = tools.make()
    scope = fs.Scope(tmp_path, [fs.loss(), fs.activations("hidden", keep="tensor")], every=1)

    @scope.step
    def step(x):
        model(keras.ops.convert_to_tensor(x))

    scope.attach(model)
    with pytest.warns(fs.FitscopeWarning, match="loss: the step computes no loss"):
        assert [step(x[:8]), step(x[8:16])] == [None, None]
        scope.close()
    run = fs.open(tmp_path)
    assert run.status == "complete"
    assert run.unseen == {"loss": "the step computes no loss that can be seen from outside"}
    for n in range(2):
        tools.close(
            run.array("activations/hidden", n),
            by_hand.forward(by_hand.weights(), x[8 * n : 8 * n + 8])["hidden"],
        )
