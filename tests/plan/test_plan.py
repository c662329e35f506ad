"""What watches mean for one model: frozen before the first step."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import pytest
from keras import layers

import fitscope as fs
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.plan import Due, resolve
from fitscope.plan.wants import LOSS_SCALE, Want
from fitscope.schedule import Turn, schedule


@pytest.fixture(scope="module")
def anatomy():
    inner = keras.Sequential([layers.Input((4,), name="i"), layers.Dense(3, name="dense")], name="encoder")
    x = layers.Input((5, 4), name="x")
    h = layers.LSTM(4, name="lstm")(x)
    h = layers.BatchNormalization(name="norm")(inner(h))
    return Anatomy.of(keras.Model(x, layers.Dense(2, name="dense_1", trainable=False)(h)))


def places(anatomy, *watches):
    return sorted(resolve(watches, anatomy, schedule(1)).wants(frozenset(range(len(watches)))))


def test_nested_layers_and_weights_have_paths(anatomy):
    assert [part.path for part in anatomy.layers] == [
        "x", "lstm", "lstm/lstm_cell", "encoder", "encoder/i", "encoder/dense", "norm", "dense_1",
    ]  # fmt: skip
    assert [part.path for part in anatomy.layers if part.container] == ["encoder"]
    assert {part.path: part.looped for part in anatomy.layers if part.looped} == {"lstm/lstm_cell": "lstm"}
    assert [w.path for w in anatomy.weights if w.path.startswith("lstm")] == [
        f"lstm/lstm_cell/{name}" for name in ("kernel", "recurrent_kernel", "bias")
    ]


def test_by_default_a_watch_selects_every_layer_that_computes_a_value(anatomy):
    wanted = ["dense_1", "encoder/dense", "lstm", "norm"]
    assert [path for _, path in places(anatomy, fs.activations())] == wanted
    trained = {path for _, path in places(anatomy, fs.weight_gradients())}
    assert "norm/gamma" in trained
    assert not any(path.startswith("dense_1") or "moving" in path for path in trained)


def test_selectors_match_names_paths_globs_and_classes(anatomy):
    assert places(anatomy, fs.activations("encoder")) == [("activations", "encoder")]
    assert places(anatomy, fs.activations("encoder/*")) == [("activations", "encoder/dense")]
    assert [p for _, p in places(anatomy, fs.activations("dense*"))] == ["dense_1", "encoder/dense"]
    assert [p for _, p in places(anatomy, fs.activations("lstm*"))] == ["lstm"]
    assert [p for _, p in places(anatomy, fs.weights("*/kernel"))] == [
        "dense_1/kernel",
        "encoder/dense/kernel",
        "lstm/lstm_cell/kernel",
    ]
    assert [p for _, p in places(anatomy, fs.weights(layers.Dense))] == [
        "dense_1/bias", "dense_1/kernel", "encoder/dense/bias", "encoder/dense/kernel",
    ]  # fmt: skip
    with pytest.raises(
        fs.WatchError, match=r"runs once in a step.*'lstm' runs once per time step.*Watch 'lstm'"
    ):
        places(anatomy, fs.activations("lstm/lstm_cell"))
    with pytest.raises(
        fs.WatchError, match="There are: 'lstm', 'encoder', 'encoder/dense', 'norm', 'dense_1'"
    ):
        places(anatomy, fs.gradients("x"))


def test_the_wants_of_several_watches_are_merged(anatomy):
    plan = resolve(
        [
            fs.activations("norm"),
            fs.activations("norm", keep="tensor", samples=4),
            fs.activations("norm", keep="both", samples=9),
        ],
        anatomy,
        schedule(2),
    )
    place = ("activations", "norm")
    assert plan.wants(frozenset({0})) == {place: Want(True, False, None)}
    assert plan.wants(frozenset({0, 1})) == {place: Want(True, True, 4)}
    assert plan.wants(frozenset({0, 1, 2})) == {place: Want(True, True, 9)}


def test_each_watch_is_due_on_its_schedule(anatomy):
    plan = resolve([fs.loss(), fs.metrics(every=3), fs.inputs(every=fs.epochs())], anatomy, schedule(2))
    assert plan.due(Turn(0, 0, 0, 7)) == Due({0, 1}, set(), set())
    assert plan.due(Turn(6, 0, 6, 7)) == Due({0, 1, 2}, set(), set())
    assert plan.due(Turn(6, 0, 6, None)) == Due({0, 1}, {2}, set())
    assert [watch["every"] for watch in plan.describe()] == ["every 2", "every 3", "every epoch, batch last"]


def test_the_loss_scale_is_wanted_with_gradients(anatomy):
    model = keras.Sequential([layers.Input((2,)), layers.Dense(1, name="d")])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    scaled = Anatomy.of(model)
    assert LOSS_SCALE in places(scaled, fs.gradients())
    assert LOSS_SCALE in places(scaled, fs.weight_gradients())
    assert LOSS_SCALE not in places(scaled, fs.activations(), fs.loss())
    assert LOSS_SCALE not in places(anatomy, fs.gradients())


def test_a_weight_shared_by_neighbours_stays_with_the_first():
    """`dense` is not an outer layer of `dense_1`."""

    class Borrows(layers.Layer):
        def build(self, shape):
            self.kernel = self.lender.kernel

        def call(self, x):
            return x @ self.kernel

    lender = layers.Dense(3, name="dense", use_bias=False)
    borrower = Borrows(name="dense_1")
    borrower.__dict__["lender"] = lender
    model = keras.Sequential([layers.Input((3,)), lender, borrower])
    assert [w.path for w in Anatomy.of(model).weights] == ["dense/kernel"]


def test_a_model_without_weights_has_its_layers():
    """A step of the user's own may build and call them, and never the model."""
    parts = Anatomy.of(keras.Sequential([layers.Dense(2, name="only")]))
    assert [part.path for part in parts.layers] == ["only"]
    assert parts.weights == ()
    assert parts.describe()["parameters"] == 0


def test_an_object_that_is_not_a_model_is_an_error():
    with pytest.raises(fs.ModelError, match="a Keras model"):
        Anatomy.of(object())
