"""Legacy Keras with eager execution: exact values, and the same training to the last bit."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tf_keras import layers

import fitscope as fs
from fitscope.errors import FitscopeWarning, ModelError, WatchError

pytestmark = pytest.mark.legacy
MODES = {"graph": {}, "eager": {"run_eagerly": True}}


def check(
    done: Any, x: np.ndarray, y: np.ndarray, steps: Any, *, dropout: bool = True, weight: Any = None
) -> None:
    """Every captured step against NumPy, from the weights before it."""
    run = done.run
    assert list(run.series("loss").index) == list(steps)
    for step in steps:
        before, after = done.seen[step]
        i = step % 3 * 8
        given, labels = x[i : i + 8], y[i : i + 8]
        np.testing.assert_array_equal(run.array("inputs", step), given)
        np.testing.assert_array_equal(run.array("targets", step).ravel(), labels)
        first = np.maximum(given @ before[0] + before[1], 0)
        np.testing.assert_allclose(run.array("activations/first", step), first, rtol=1e-4, atol=1e-6)
        norm = run.array("activations/norm", step)
        np.testing.assert_allclose(norm.mean(0), before[3], atol=1e-5)  # as in training
        drop = run.array("activations/drop", step) if dropout else norm
        if dropout:
            assert set(np.unique(drop[drop != 0] / norm[drop != 0]).round(3)) == {2.0}
        kernel, bias = before[6], before[7]
        logits = drop @ kernel + bias
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        probabilities = shifted / shifted.sum(1, keepdims=True)
        np.testing.assert_allclose(run.array("predictions", step), probabilities, rtol=1e-3, atol=1e-6)
        weights = np.ones(8) if weight is None else weight[i : i + 8]
        losses = -np.log(probabilities[np.arange(8), labels]) * weights
        assert run.series("loss").loc[step] == pytest.approx(losses.mean(), rel=1e-4)
        d_logits = (probabilities - np.eye(3)[labels]) / 8 * weights[:, None]
        np.testing.assert_allclose(
            run.array("weight_gradients/last/kernel", step), drop.T @ d_logits, rtol=1e-3, atol=1e-6
        )
        np.testing.assert_allclose(
            run.array("gradients/drop" if dropout else "gradients/norm", step),
            d_logits @ kernel.T,
            rtol=1e-3,
            atol=1e-6,
        )
        for name, k in (("first/kernel", 0), ("last/kernel", 6), ("norm/moving_mean", 4)):
            np.testing.assert_array_equal(run.array(f"weights/{name}", step), before[k])
            np.testing.assert_array_equal(run.array(f"updates/{name}", step), after[k] - before[k])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("mode", list(MODES))
def test_values_are_those_of_the_step_and_training_is_identical(watch_fit, tools, xy, mode, every):
    done = watch_fit(lambda: tools.small(**MODES[mode]), *xy, every=every, epochs=2)
    check(done, *xy, range(0, 6, every))


@pytest.mark.parametrize("every", [1, 3])
def test_a_legacy_step_compiled_by_xla_is_recorded(watch_fit, tools, xy, every):
    """Without dropout: with it, two trainings under XLA are not the same even unwatched."""
    done = watch_fit(lambda: tools.small(0, jit_compile=True), *xy, every=every, epochs=2)
    check(done, *xy, range(0, 6, every), dropout=False)


def test_legacy_sample_weights_and_generators_are_recorded(watch_fit, tools, xy):
    x, y = xy
    weight = np.linspace(0.1, 1, 24)

    def rows() -> Any:
        for _ in range(2):
            for i in range(0, 24, 8):
                yield x[i : i + 8], y[i : i + 8], weight[i : i + 8]

    done = watch_fit(lambda: tools.small(), lambda: rows(), epochs=2, steps_per_epoch=3)
    check(done, x, y, range(6), weight=weight)


def test_convolutions_that_tensorflow_fuses_are_recorded(watch_fit):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 8, 8, 1)).astype("f"), rng.integers(0, 3, 24)

    def make() -> Any:
        tf_keras.utils.set_random_seed(0)
        model = tf_keras.Sequential(
            [
                layers.InputLayer((8, 8, 1)), layers.Conv2D(4, 3, name="conv"), layers.ReLU(), layers.Conv2D(4, 3),
                layers.BatchNormalization(), layers.ReLU(), layers.Flatten(), layers.Dropout(0.3), layers.Dense(3),
            ]
        )  # fmt: skip
        model.compile("adam", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    done = watch_fit(make, x, y, epochs=2)
    assert done.run.array("activations/conv", 0).shape == (8, 6, 6, 4)


def test_validation_predictions_and_labels_are_recorded(watch_fit, tools, xy):
    x, y = xy
    watch = [fs.predictions(), fs.targets(), fs.loss(), fs.activations("first")]
    done = watch_fit(
        lambda: tools.small(),
        x,
        y,
        watch=watch,
        on=("train", "validation"),
        epochs=2,
        validation_data=(x[:16], y[:16]),
    )
    run = done.run
    for epoch, step in enumerate((3, 6)):
        targets = np.asarray(run.tensor("validation/targets").sel(step=step)).ravel().astype(int)
        predictions = np.asarray(run.tensor("validation/predictions").sel(step=step)).reshape(-1, 3)
        np.testing.assert_array_equal(targets, y[:16])
        losses = -np.log(predictions[np.arange(16), targets])
        assert losses.mean() == pytest.approx(done.history["val_loss"][epoch], rel=1e-5)
    np.testing.assert_array_equal(predictions, done.model.predict(x[:16], batch_size=8, verbose=0))
    assert "validation/activations/first" in run.sites


class Custom(tf_keras.Model):
    """A subclassed model that is built by its first step, with a step and a branch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers.Dense(4, activation="relu", name="body")
        self.head = layers.Dense(3, name="head")

    def call(self, x, training=False):
        h = self.body(x)
        if tf.reduce_sum(h) > 1e9:  # AutoGraph turns it into a branch of the graph
            h = h * 0
        return self.head(h)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            out = self(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, out))
        gradients = tape.gradient(loss, self.trainable_variables)
        clipped = [tf.clip_by_norm(gradient, 0.1) for gradient in gradients]
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_an_unbuilt_legacy_model_with_a_custom_step_is_recorded(watch_fit, xy):
    def make() -> Any:
        tf_keras.utils.set_random_seed(0)
        model = Custom()
        model.compile("sgd")
        return model

    done = watch_fit(
        make,
        *xy,
        epochs=2,
        watch=[fs.activations(keep="both"), fs.weight_gradients(keep="both"), fs.loss(), fs.gradients()],
    )
    assert list(done.run.series("loss").index) == list(range(6))
    norms = [np.linalg.norm(done.run.array("weight_gradients/head/kernel", step)) for step in range(6)]
    assert max(norms) <= 0.1001
    assert done.run.array("activations/body", 5).shape == (8, 4)
    assert "gradients/body" in done.run.sites


@pytest.mark.parametrize("eager", [False, True])
def test_local_gradients_of_a_legacy_model_are_listed_as_unseen(tools, xy, tmp_path, eager):
    scope = fs.Scope(tmp_path, fs.weight_gradients("last", local=True), 1, on=("train", "validation"))
    tools.small(run_eagerly=eager).fit(*xy, verbose=0, validation_data=xy, callbacks=[scope.legacy()])
    run = fs.open(tmp_path)
    local = {site: why for site, why in run.unseen.items() if site.endswith("/local")}
    assert set(local) == {f"weight_gradients/last/{name}/local" for name in ("kernel", "bias")}
    assert all("is the only one" in why for why in local.values())
    assert "weight_gradients/last/kernel" in run.sites


def test_several_legacy_steps_in_one_execution_are_recorded(tools, xy, tmp_path):
    model = tools.small(steps_per_execution=3)
    scope = fs.Scope(tmp_path, fs.loss(), 1)
    model.fit(*xy, batch_size=8, epochs=2, verbose=0, callbacks=[scope.legacy()])
    run = fs.open(tmp_path)
    assert list(run.series("loss").index) == [2, 5]
    assert "only the last" in run.unseen["steps"]


def test_shared_layers_are_numbered(watch_fit, xy):
    def make() -> Any:
        tf_keras.utils.set_random_seed(0)
        given = layers.Input((5,))
        shared = layers.Dense(5, name="shared")
        model = tf_keras.Model(given, layers.Dense(3, name="out")(shared(shared(given))))
        model.compile("sgd", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    done = watch_fit(make, *xy, epochs=1)
    one, two = done.run.array("activations/shared", 0), done.run.array("activations/shared#2", 0)
    kernel, bias = done.seen[0][0][:2]
    np.testing.assert_allclose(two, one @ kernel + bias, rtol=1e-4, atol=1e-5)


def test_nothing_is_left_on_a_legacy_model(tools, xy, tmp_path):
    plain, model = tools.small(), tools.small()
    both = {"batch_size": 8, "epochs": 1, "verbose": 0, "validation_data": xy}
    plain.fit(*xy, **both)
    scope = fs.Scope(tmp_path, tools.everything(), 1, on=("train", "validation"))
    model.fit(*xy, **both, callbacks=[scope.legacy()])
    assert set(vars(model)) == set(vars(plain))
    for mine, other in zip(model._flatten_layers(), plain._flatten_layers(), strict=True):
        assert set(vars(mine)) == set(vars(other))
    assert set(vars(model.optimizer)) == set(vars(plain.optimizer))
    model.fit(*xy, batch_size=8, epochs=1, verbose=0)
    assert list(fs.open(tmp_path).series("loss").index) == [0, 1, 2]
    model.save(tmp_path / "model.keras")
    tf.saved_model.save(model, str(tmp_path / "saved"))


def test_an_exception_in_a_legacy_step_ends_the_run_as_failed(tools, xy, tmp_path):
    scope = fs.Scope(tmp_path, fs.loss(), 1)

    class Stop(tf_keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ZeroDivisionError

    model = tools.small()
    with pytest.raises(ZeroDivisionError):
        model.fit(*xy, batch_size=8, verbose=0, callbacks=[scope.legacy(), Stop()])
    scope.close()
    assert fs.open(tmp_path).status == "failed"
    assert fs.open(tmp_path).ended_by == "ZeroDivisionError"
    assert "train_step" not in vars(model)
    model.fit(*xy, batch_size=8, verbose=0, callbacks=[scope.legacy()])
    assert fs.open(tmp_path).status == "complete"


def test_without_tf_keras_the_error_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    monkeypatch.delitem(sys.modules, "fitscope.capture.sessions.legacy", raising=False)
    with pytest.raises(ModelError, match=r"pip install fitscope\[legacy\]"):
        fs.Scope(tmp_path).legacy()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("legacy.LegacyCallback", "_make_way"),
        ("legacy_step.StepWay", "train_begin"),
        ("progress.Progress", "epoch"),
    ],
)
def test_an_error_of_fitscope_does_not_end_the_training(tools, xy, tmp_path, monkeypatch, owner, name):
    def boom(*args, **kwargs):
        raise RuntimeError("broken on purpose")

    weights = []
    for broken in (False, True):
        model = tools.small()
        callback = fs.Scope(tmp_path, every=1).legacy()
        if broken:
            monkeypatch.setattr(f"fitscope.capture.sessions.{owner}.{name}", boom)
            with pytest.warns(FitscopeWarning, match="broken on purpose"):
                model.fit(*xy, verbose=0, shuffle=False, callbacks=[callback])
        else:
            model.fit(*xy, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    assert all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_pattern_that_matches_no_legacy_layer_is_an_error(tools, xy, tmp_path):
    with pytest.raises(WatchError, match="Did you mean 'first'"):
        tools.small().fit(*xy, verbose=0, callbacks=[fs.Scope(tmp_path, fs.activations("frist")).legacy()])


def test_a_legacy_model_on_several_replicas_is_refused(xy, tmp_path):
    cpus = tf.config.list_logical_devices("CPU")
    with tf.distribute.MirroredStrategy([cpu.name for cpu in cpus]).scope():
        model = tf_keras.Sequential([layers.InputLayer((5,)), layers.Dense(3)])
        model.compile("sgd", "mse")
    with pytest.warns(FitscopeWarning, match="several replicas"):
        model.fit(*xy, verbose=0, callbacks=[fs.Scope(tmp_path).legacy()])
